"""Operations on rows: norms, gates, rotary embeddings and quantisation, which stand between products."""

"""What no build needs: the census, published times, search strategies, files of earlier versions, a page's tables."""

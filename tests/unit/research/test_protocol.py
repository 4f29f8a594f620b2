import pytest

pytest.importorskip("torch")

from research.bench import protocol


def test_a_long_replay_is_timed_behind_one_of_its_own(monkeypatch):
    replays = []

    def replay_us(graph, count):
        replays.append(graph)
        return 7000.0 - 1000 * (replays[-2:] == [graph] * 2) if graph == "long" else 3.0

    monkeypatch.setattr(protocol, "replay_us", replay_us)
    times = protocol.interleave({"short": ("short", 100), "long": ("long", 1)})
    assert times == {"short": [3.0] * protocol.ROUNDS, "long": [6000.0] * protocol.ROUNDS}
    assert replays[:6] == ["short", "long", "long", "long", "long", "short"]

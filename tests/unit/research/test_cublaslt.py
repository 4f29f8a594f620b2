"""The bench's cuBLASLt peer over a twin of the library that multiplies on the CPU, column-major as cuBLAS does."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from research.bench import cublaslt
from research.bench import cublaslt_api as api

pytestmark = pytest.mark.slow

STREAM = 0xABCD
BAD_STATE, FAILS, DOES_NOTHING, NEEDS_TOO_MUCH = 0, 1, 2, 3
"""Proposals of the twin that are no good, by rank."""
NUM_PROPOSALS = 9
TIMES = {4: 5.0, 5: 2.0, 6: 4.0, 7: 1.0, 8: 3.0, DOES_NOTHING: 0.5}


class Twin:
    """The functions of libcublasLt that the peer calls."""

    def __init__(self):
        self.objects, self.attributes, self.destroyed = {}, {}, 0
        self.num_proposals, self.sign = NUM_PROPOSALS, 1.0

    def _create(self, pointer, *values):
        pointer._obj.value = len(self.objects) + 1
        self.objects[pointer._obj.value] = values
        return 0

    def _set(self, descriptor, attribute, value, num_bytes):
        assert num_bytes == ctypes.sizeof(value._obj)
        self.attributes[descriptor.value, attribute] = value._obj.value
        return 0

    def _destroy(self, descriptor):
        assert descriptor.value in self.objects
        self.destroyed += 1
        return 0

    def __getattr__(self, name):
        kinds = {"Create": self._create, "SetAttribute": self._set, "Destroy": self._destroy}
        whole = {
            "cublasLtGetStatusName": lambda status: {15: b"CUBLAS_STATUS_NOT_SUPPORTED"}[status],
            "cublasLtMatmulAlgoGetHeuristic": self._propose,
            "cublasLtMatmul": self._multiply,
        }
        return whole[name] if name in whole else next(kinds[kind] for kind in kinds if name.endswith(kind))

    def _propose(self, handle, operation, a, b, c, d, preference, asked, results, count):
        assert (handle.value, c.value, asked) == (1, d.value, 256)
        self.preference = preference.value
        count._obj.value = self.num_proposals
        for rank in range(self.num_proposals):
            results[rank].algorithm.data[0] = rank
            results[rank].state = 7 if rank == BAD_STATE else 0
            results[rank].workspace_bytes = cublaslt.WORKSPACE_BYTES + (1 if rank == NEEDS_TOO_MUCH else 0)
        return 0

    def _matrix(self, layout, address):
        kind, rows, columns, step = self.objects[layout.value]
        dtype = {14: torch.bfloat16, 2: torch.float16}[kind]
        memory = (ctypes.c_uint8 * (2 * columns * step)).from_address(address)
        return torch.as_strided(torch.frombuffer(memory, dtype=dtype), (rows, columns), (1, step))

    def _multiply(self, handle, operation, alpha, a, al, b, bl, beta, c, cl, d, dl, algorithm, *workspace_stream):
        assert (handle.value, alpha._obj.value, beta._obj.value, c, cl) == (1, 1.0, 0.0, d, dl)
        assert self.objects[operation.value] == (68, 0)
        assert workspace_stream[1:] == (cublaslt.WORKSPACE_BYTES, STREAM)
        rank = algorithm._obj.data[0]
        if rank == FAILS:
            return 15
        left, right, out = self._matrix(al, a), self._matrix(bl, b), self._matrix(dl, d)
        left = left.T if self.attributes[operation.value, 3] == 1 else left
        right = right.T if self.attributes[operation.value, 4] == 1 else right
        if rank != DOES_NOTHING:
            out.copy_(self.sign * (left.float() @ right.float()))
        return 0


@pytest.fixture
def twin(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=STREAM))
    library = Twin()

    def capture(call, sets, graph_us):
        assert graph_us == cublaslt.SCREENING_US
        for operands in sets:
            call(*operands)
        algorithm = call.__closure__[call.__code__.co_freevars.index("algorithm")].cell_contents
        return algorithm.data[0], 1

    monkeypatch.setattr(cublaslt, "SCREENING_LIMIT_S", 60.0)
    monkeypatch.setattr(cublaslt, "capture", capture)
    monkeypatch.setattr(cublaslt, "replay_us", lambda rank, _: TIMES.get(rank, 9.0))
    return library


@pytest.fixture
def peer(twin):
    made = cublaslt.CublasLt.__new__(cublaslt.CublasLt)
    made._library, made._handle = twin, ctypes.c_void_p(1)
    twin.objects[1] = ()
    made._workspace = torch.empty(16, dtype=torch.uint8)
    return made


def sets_of(m, n, k, dtype):
    return [(torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype), torch.empty(m, n, dtype=dtype)) for _ in "ab"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_fastest_right_proposals_are_kept_and_compute_the_product(peer, twin, dtype):
    sets = sets_of(3, 24, 16, dtype)
    with peer.screened(sets, sets[0][0] @ sets[0][1].T) as screened:
        assert (screened.num_proposals, screened.num_screened, screened.num_failed) == (7, 7, 2)
        assert list(screened.calls) == [7, 5, 8]
        x, weight, out = sets[1]
        for call in screened.calls.values():
            out.zero_()
            call(x, weight, out)
            torch.testing.assert_close(out.float(), (x @ weight.T).float(), rtol=1e-2, atol=1e-2)
    assert twin.destroyed == len(twin.objects) - 1


def test_the_heuristic_is_told_the_workspace_and_alignments_below_its_default(peer, twin):
    memory = torch.randn(4096).to(torch.bfloat16)
    first = -memory.data_ptr() % 256 // 2
    x, weight, out = memory[first + 8 :], memory[first + 512 :], memory[first + 1024 + 32 :]
    operands = (x[:48].view(3, 16), weight[:384].view(24, 16), out[:72].view(3, 24))
    with peer.screened([operands], operands[0] @ operands[1].T):
        pass
    asked = {attribute: value for (owner, attribute), value in twin.attributes.items() if owner == twin.preference}
    assert asked == {1: 64 * 2**20, 6: 16, 7: 64, 8: 64}


def test_a_library_that_computes_something_else_gives_no_column(peer, twin):
    twin.sign = -1.0
    sets = sets_of(3, 24, 16, torch.bfloat16)
    with pytest.raises(api.CublasLtError) as error, peer.screened(sets, sets[0][0] @ sets[0][1].T):
        pass
    assert str(error.value) == "7 of 7 proposals failed or were wrong; expected one right"
    assert twin.destroyed == len(twin.objects) - 1


def test_no_more_are_screened_than_the_cap(peer, twin):
    twin.num_proposals = 60
    sets = sets_of(1, 16, 16, torch.bfloat16)
    with peer.screened(sets, sets[0][0] @ sets[0][1].T) as screened:
        assert (screened.num_proposals, screened.num_screened) == (58, 40)


def test_none_is_screened_after_the_time_but_the_first(peer, twin, monkeypatch):
    monkeypatch.setattr(cublaslt, "SCREENING_LIMIT_S", -1.0)
    twin.sign = -1.0
    sets = sets_of(1, 16, 16, torch.bfloat16)
    with pytest.raises(api.CublasLtError, match=r"^1 of 7 proposals"), peer.screened(sets, sets[0][0] @ sets[0][1].T):
        pass


def test_the_structs_are_those_of_the_header():
    # offsetof and sizeof as a C compiler gives them for cublasLt.h of nvidia-cublas 13.1.1.3.
    fields = {name: getattr(api.HeuristicResult, name).offset for name, _ in api.HeuristicResult._fields_}
    assert fields == {"algorithm": 0, "workspace_bytes": 64, "state": 72, "waves_count": 76, "reserved": 80}
    assert (ctypes.sizeof(api.HeuristicResult), ctypes.sizeof(api.Algorithm)) == (96, 64)


def test_the_library_that_the_process_has_mapped_is_found_once():
    maps = (
        "7f00-7f10 r-xp 00000000 08:01 42   /opt/a b/nvidia/cu13/lib/libcublasLt.so.13\n"
        "7f10-7f20 r--p 00010000 08:01 42   /opt/a b/nvidia/cu13/lib/libcublasLt.so.13\n"
        "7f20-7f30 rw-p 00000000 00:00 0 \n"
        "7f30-7f40 r-xp 00000000 08:01 43   /opt/nvidia/lib/libcublas.so.13\n"
    )
    assert [str(path) for path in api.mapped(maps)] == ["/opt/a b/nvidia/cu13/lib/libcublasLt.so.13"]


def test_a_missing_library_is_an_error_that_says_where_it_looked(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "LIBRARY", "libcublasLt.so.nowhere")
    with pytest.raises(api.CublasLtError) as error:
        api.find_library()
    text = str(error.value)
    assert text.startswith("no libcublasLt.so.nowhere was found; looked in /proc/self/maps, ")
    assert "/nvidia/cu13/lib/libcublasLt.so.nowhere, " in text
    assert text.endswith("; install torch built for CUDA 13")


def test_a_file_that_is_no_library_is_an_error(tmp_path):
    path = tmp_path / "libcublasLt.so.13"
    path.write_text("")
    with pytest.raises(api.CublasLtError, match=r"libcublasLt\.so\.13 does not load \(.*\); expected cuBLASLt 13"):
        api.load(path)


def test_alignment_is_that_of_the_address_up_to_the_default():
    assert [cublaslt.alignment(address) for address in (0, 2, 48, 256, 512, 768)] == [256, 2, 16, 256, 256, 256]

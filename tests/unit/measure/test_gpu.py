from aot.measure.gpu import Gpu
from tests.unit.twins import TwinGpu


def test_the_twin_has_what_the_interface_asks():
    asked = {name for name in {*vars(Gpu), *Gpu.__annotations__} if not name.startswith("_")}
    assert {"alloc", "capture", "fill", "l2_bytes", "replay_us", "stream"} <= asked
    twin = TwinGpu()
    assert [name for name in sorted(asked) if not hasattr(twin, name)] == []

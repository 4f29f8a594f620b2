from aot.core.errors import DeviceError
from aot.measure.gpu import ContextLostError, Gpu
from tests.unit.twins import TwinGpu


def test_the_twin_has_what_the_interface_asks():
    asked = {name for name in {*vars(Gpu), *Gpu.__annotations__} if not name.startswith("_")}
    assert {"alloc", "capture", "fill", "l2_bytes", "replay_us", "stream"} <= asked
    twin = TwinGpu()
    assert [name for name in sorted(asked) if not hasattr(twin, name)] == []


def test_a_lost_context_is_the_device_failing():
    assert issubclass(ContextLostError, DeviceError)
    assert ContextLostError("gone").exit_code == DeviceError.exit_code

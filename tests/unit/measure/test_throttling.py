from aot.measure.protocol import TimingPlan
from aot.measure.throttling import ThrottlingWatch

PLAN = TimingPlan(reference_tolerance=0.15, settle_s=3.0)


class Rig:
    def __init__(self, readings, usual=None):
        self.readings, self.warnings, self.slept = iter(readings), [], 0.0
        self.watch = ThrottlingWatch(PLAN, lambda: next(self.readings), usual, self.warnings.append, self.sleep)

    def sleep(self, seconds):
        self.slept += seconds


def test_a_steady_device_is_left_alone():
    rig = Rig([10.0, 11.0, 10.2, 9.6])
    rig.watch.start()
    assert [rig.watch.changed() for _ in range(3)] == [""] * 3
    assert (rig.warnings, rig.slept) == ([], 0.0)


def test_a_change_is_told_both_ways():
    rig = Rig([10.0, 15.0, 10.0])
    rig.watch.start()
    assert rig.watch.changed() == "the reference kernel takes 15.00 us, before it took 10.00 us"
    assert rig.watch.changed() == "the reference kernel takes 10.00 us, before it took 15.00 us"


def test_it_waits_for_the_usual_speed():
    rig = Rig([10.0, 15.0, 15.0, 10.5, 10.4])
    rig.watch.start()
    assert rig.watch.changed()
    rig.watch.settle()
    assert (rig.warnings, rig.slept) == ([], 2.0)
    assert rig.watch.changed() == ""


def test_a_speed_that_stays_becomes_the_usual_one():
    rig = Rig([10.0, *[15.0] * 6])
    rig.watch.start()
    assert rig.watch.changed()
    rig.watch.settle()
    assert rig.slept == PLAN.settle_s
    (warning,) = rig.warnings
    assert warning.startswith(
        "the device keeps another speed than before: the reference kernel takes 15.00 us, it took 10.00 us"
    )
    assert rig.watch.changed() == ""
    rig.watch.settle()
    assert rig.slept == PLAN.settle_s


def test_another_speed_than_an_earlier_processs_is_found_at_the_start():
    rig = Rig([15.0] * 4, usual=10.0)
    rig.watch.start()
    assert len(rig.warnings) == 1


def test_without_an_anchor_nothing_drifts():
    rig = Rig([None] * 3)
    rig.watch.start()
    rig.watch.settle()
    assert rig.watch.changed() == ""

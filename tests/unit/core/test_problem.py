from tests.unit.twins import problem_of


def test_work_and_traffic():
    problem = problem_of(2, 3, 5)
    assert problem.flops == 2 * 2 * 3 * 5
    assert problem.num_bytes == 2 * (2 * 5 + 3 * 5 + 2 * 3)
    assert problem.name == "bf16_kk m2 n3 k5"

"""Validity of combinations of kernel, account, steps and subsampling."""

import pytest

import relbo
from relbo.core.accounts import ACCOUNTS
from relbo.core.kernels import KERNELS


@pytest.mark.parametrize(
    ("kernel", "account", "options", "valid"),
    [
        (relbo.SGD(), relbo.ParticleAccount(), {}, False),
        (relbo.SGLD(), relbo.MonteCarloAccount(), {}, False),
        (relbo.SGLD(), relbo.ReverseKernelAccount(), {}, True),
        (relbo.Underdamped(), relbo.ReverseKernelAccount(), {}, True),
        (relbo.SGLDR(), relbo.ReverseKernelAccount(), {}, True),
        (relbo.PSGLD(metric="local"), relbo.ReverseKernelAccount(), {}, True),
        (relbo.PSGLD(metric=1.0), relbo.ReverseKernelAccount(), {}, True),
        (relbo.SGD(), relbo.GaussianAccount(), {}, True),
        (relbo.SGLD(), relbo.GaussianAccount("draw"), {}, True),
        (relbo.SGD(), relbo.ChangeOfVariablesAccount(), {}, None),
        (relbo.SGD(), relbo.ChangeOfVariablesAccount(8), {"dimension": 9}, False),
        (relbo.SVGD(), relbo.ChangeOfVariablesAccount(), {}, None),
        (relbo.FokkerPlanckFlow(), relbo.ParticleAccount(), {}, False),
        (relbo.SGLD(), relbo.ReverseKernelAccount(), {"subsampling": "independent"}, True),
        (relbo.SGLD(), relbo.ReverseKernelAccount(), {"subsampling": "shared"}, False),
        (
            relbo.SGLD(),
            relbo.ReverseKernelAccount(),
            {"subsampling": "independent", "importance_weighted": True},
            False,
        ),
        (relbo.SGLD(), relbo.ReverseKernelAccount(), {"importance_weighted": True}, True),
        (relbo.SGLD(), relbo.ReverseKernelAccount(), {"base_has_density": False}, False),
    ],
)
def test_bound(kernel, account, options, valid):
    found = relbo.bound(kernel, account, 4, **options)
    assert found.valid is valid
    assert found.reason


def test_without_steps_every_account_is_a_bound():
    assert relbo.bound(relbo.SGD(), relbo.ParticleAccount(), 0).valid is True
    assert (
        relbo.bound(relbo.SGD(), relbo.ParticleAccount(), 0, subsampling="shared").valid is True
    )


@pytest.mark.parametrize(
    ("kernel", "account", "names"),
    [
        (
            relbo.SGLD(),
            relbo.ChangeOfVariablesAccount(),
            ("ChangeOfVariablesAccount", "SGLD", "ReverseKernelAccount"),
        ),
        (
            relbo.SGD(),
            relbo.ReverseKernelAccount(),
            ("ReverseKernelAccount", "SGD", "ChangeOfVariablesAccount"),
        ),
        (relbo.SGD(), relbo.MonteCarloAccount(), ("MonteCarloAccount", "SGD", "SGLD")),
        (
            relbo.PSGLD(),
            relbo.ReverseKernelAccount(),
            ("ReverseKernelAccount", "PSGLD", "local"),
        ),
        (
            relbo.Underdamped(),
            relbo.MonteCarloAccount(),
            ("MonteCarloAccount", "Underdamped", "Reverse"),
        ),
        (relbo.SVGD(), relbo.GaussianAccount(), ("Gaussian", "SVGD", "draw")),
    ],
)
def test_refusals_name_the_kernel_and_the_account_and_say_what_to_use(kernel, account, names):
    with pytest.raises(ValueError, match="use") as refusal:
        relbo.Refinement(kernel, account, num_steps=2)
    assert all(name in str(refusal.value) for name in names)


def test_table_has_a_row_for_each_kernel_and_a_column_for_each_account():
    rows = relbo.validity_table().splitlines()
    assert len(rows) == 2 + len(KERNELS)
    assert all(row.count("|") == 2 + len(ACCOUNTS) for row in rows)
    assert (
        "| SGLD | surrogate | surrogate | **bound** | **bound** | refused | **bound** |" in rows
    )
    verdicts = "surrogate | refused | refused | **bound** | bound while one-to-one | refused"
    assert f"| SVGD | {verdicts} |" in rows


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": -1}, "num_steps: expected an integer of 0 or more, got -1"),
        ({"num_steps": 2.0}, "num_steps: expected an integer of 0 or more, got 2.0"),
        ({"num_steps": True}, "num_steps: expected an integer of 0 or more, got True"),
        ({"subsampling": "Shared"}, "subsampling: expected one of .*, got 'Shared'"),
        ({"dimension": 0}, "dimension: expected an integer of 1 or more, got 0"),
    ],
)
def test_bound_checks_its_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        relbo.bound(relbo.SGLD(), relbo.ReverseKernelAccount(), **{"num_steps": 4, **options})

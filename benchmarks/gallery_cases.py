"""All cases of the gallery, and which half of them is held out from tuning."""

import dataclasses

import gallery_conjugate
import gallery_extremes
import gallery_hierarchies
import gallery_modes
import gallery_regressions
import gallery_shapes
from gallery_truth import Case

# Half of each kind, chosen once by a hash of the names that splits families of cases.
HELD_OUT = {
    "autoregression",
    "banana_2",
    "beside_banana",
    "beside_gumbel",
    "box",
    "cauchy_10",
    "columns_1e-4_to_1e4",
    "eight_schools_centred",
    "eight_schools_noncentred",
    "flat_priors_proper",
    "flat_simplex_10",
    "funnel_10",
    "gamma_0.1",
    "gamma_2",
    "gp_scales",
    "improper_all_successes",
    "improper_separable",
    "improper_sum",
    "label_switching",
    "location_1e8",
    "logistic_8",
    "lognormal_mild",
    "lognormals_sd_2",
    "mixture_weight",
    "mode_half_20",
    "mode_narrow_10",
    "modes_far_20",
    "modes_far_5",
    "modes_three",
    "nested_centred",
    "no_events_in_100",
    "normal_20",
    "normal_250",
    "normal_mean_variance",
    "offset_1e7",
    "one_factor_35",
    "pareto",
    "pareto_edge",
    "poisson_regression",
    "precise_groups_noncentred",
    "ring",
    "scale_of_8",
    "sine_frequency_sharp",
    "spike_in_slab_3",
    "sum_ridge_proper",
    "truncated_normal",
    "truncated_tail",
    "twenty_groups_centred",
    "twenty_groups_noncentred",
    "uniform_upper_end",
    "von_mises",
    "weibull",
}

_MODULES = (
    gallery_conjugate,
    gallery_regressions,
    gallery_hierarchies,
    gallery_shapes,
    gallery_modes,
    gallery_extremes,
)

CASES: dict[str, Case] = {
    case.name: dataclasses.replace(case, held_out=case.name in HELD_OUT)
    for module in _MODULES
    for case in module.CASES
}

"""NumPyro guides with a sampler inside, and losses for them."""

from relbo.guides._refine import RefinedGuide as RefinedGuide
from relbo.guides._refine import refine as refine
from relbo.guides.auto_refined import AutoRefined as AutoRefined
from relbo.guides.bent_normal import AutoBentNormal as AutoBentNormal
from relbo.guides.losses import PointwiseELBO as PointwiseELBO
from relbo.guides.losses import RefinedELBO as RefinedELBO
from relbo.guides.stretched_normal import AutoStretchedNormal as AutoStretchedNormal

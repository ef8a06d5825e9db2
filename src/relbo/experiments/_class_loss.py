"""What a conditional autoencoder is trained by where it is to tell classes apart."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro.infer.elbo import ELBO

from relbo._program import Call
from relbo._weights import log_mean_exp
from relbo.elbo import log_weight


class ClassELBO(ELBO):
    r"""The importance-weighted ELBO of an image in its class, and how it stands among all.

    $$\log \hat p(x \mid y) + \alpha \log \frac{\hat p(x \mid y)}{\sum_c \hat p(x \mid c)},
      \qquad \hat p(x \mid c) = \frac1S \sum_s \frac{p(x, z_s \mid c)}{q(z_s \mid x, c)}$$

    The first term alone is a bound on $\log p(x \mid y)$. The second is an estimate of
    $\log p(y \mid x)$ with all classes as likely before, and is no bound: models of images
    spend what they have on pixels, and hardly any of it on the label.

    Args:
        num_classes: how many labels there are.
        num_particles: S.
        weight: $\alpha$.
    """

    def __init__(self, num_classes: int, num_particles: int = 1, weight: float = 1.0):
        super().__init__(num_particles=num_particles)
        self.num_classes = num_classes
        self.weight = weight

    def loss_with_mutable_state(
        self,
        rng_key: PRNGKeyArray,
        param_map: dict[str, PyTree],
        model: Any,
        guide: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        images, labels = args

        def evidence(key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
            call = Call((image[None], label[None]), {})
            weigh = lambda k: log_weight(k, param_map, model, guide, call)
            return log_mean_exp(jax.vmap(weigh)(jr.split(key, self.num_particles)))

        def objective(key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
            every = jnp.arange(self.num_classes)
            keys = jr.split(key, self.num_classes)
            return self._gain(jax.vmap(evidence, (0, None, 0))(keys, image, every), label)

        keys = jr.split(rng_key, len(images))
        gains = jax.vmap(objective)(keys, images, labels)
        scale = (kwargs.get("num_images") or len(images)) / len(images)
        return {"loss": -scale * jnp.sum(gains), "mutable_state": None}

    def _gain(self, evidence: Float[Array, " classes"], label: Array) -> Scalar:
        return evidence[label] + self.weight * jax.nn.log_softmax(evidence)[label]

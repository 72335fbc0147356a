"""From rollouts to minibatches: acting, epochs, replay, normalization, stacks of frames, n-step returns."""

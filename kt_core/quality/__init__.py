"""How good a precision of a model is: perplexity, divergence from another precision, error of each layer, choices."""

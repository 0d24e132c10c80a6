"""Which experts the tokens of a bench go to."""

import math

import torch


def even(tokens: int, experts: int, top_k: int, seed: int = 7) -> list[torch.Tensor]:
    """int64 ids [tokens, top_k] of calls to be made in turn, different experts within a token.

    Experts are dealt like cards: all are used equally often, and with few tokens none comes again before the others
    came. Chance would repeat some at once, which then lie in a cache.
    """
    generator = torch.Generator().manual_seed(seed)
    hands = experts // top_k  # tokens to a deck; the cards that are left are not dealt
    calls = max(1, hands // tokens)
    decks = [
        torch.randperm(experts, generator=generator)[: hands * top_k].reshape(hands, top_k)
        for _ in range(math.ceil(calls * tokens / hands))
    ]
    return [part.contiguous() for part in torch.cat(decks)[: calls * tokens].split(tokens)]

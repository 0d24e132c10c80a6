"""From a request to a stream of chunks: prompt, queue, runner, sampler, text."""

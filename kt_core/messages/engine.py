"""Messages of the engine: prompts, sampling, the queue."""

MESSAGES: dict[str, tuple[str, str]] = {
    "engine.empty_prompt": ("The prompt has no tokens.", "提示词中没有任何 token。"),
    "engine.no_chat_template": (
        "The model has no chat template, so it cannot take chat messages.\n"
        "Its tokenizer files hold none: it may be a base model.\n"
        "Send plain text to /v1/completions instead.",
        "该模型没有对话模板，无法接受对话消息。\n其分词器文件中没有模板：它可能是基础模型。\n请改用 /v1/completions 发送纯文本。",
    ),
    "engine.template": (
        "The model's chat template refused these messages: {reason}",
        "模型的对话模板拒绝了这些消息：{reason}",
    ),
    "engine.template_bounds": (
        "it takes more than {seconds:g} s or {gib} GiB",
        "它需要超过 {seconds:g} 秒或 {gib} GiB",
    ),
    "engine.template_args": (
        "The model's chat template has no argument {names}; it has: {known}",
        "模型的对话模板没有参数 {names}；可用的有：{known}",
    ),
    "engine.context_overflow": (
        "The prompt has {tokens} tokens, but the context is {limit} tokens, prompt and answer together.\n"
        "At least one token must be left for the answer.\n"
        "Shorten the prompt or start the server with a larger context.",
        "提示词有 {tokens} 个 token，而上下文（提示词与回答合计）为 {limit} 个 token。\n"
        "至少要给回答留出一个 token。\n请缩短提示词，或以更大的上下文启动服务。",
    ),
    "engine.more_than": ("more than {count}", "超过 {count}"),
    "engine.not_text": (
        "The prompt is no text: half a character stands in it ({reason}).",
        "提示词不是有效文本：其中有半个字符（{reason}）。",
    ),
    "engine.unknown_token": (
        "Token {token} does not exist: the model's tokens are 0 to {last}.",
        "token {token} 不存在：该模型的 token 为 0 到 {last}。",
    ),
    "engine.queue_full": (
        "The server is busy: {waiting} requests wait, and the limit is {limit}.\n\nTry again in {seconds} s.",
        "服务繁忙：已有 {waiting} 个请求在等待，上限为 {limit}。\n\n请在 {seconds} 秒后重试。",
    ),
    "engine.cache_small": (
        "Model {name} does not fit in memory with a context of {context} tokens.\n"
        "Its keys and values take {needed}, more than was planned; {planned} are there for them.\n"
        "The largest context that fits: --context {fits}. To go on at your own risk: --force",
        "上下文为 {context} 个 token 时，内存放不下模型 {name}。\n其键和值需要 {needed}，超出计划；可用 {planned}。\n"
        "可用的最大上下文：--context {fits}。自担风险继续：--force",
    ),
    "engine.context_reduced": (
        "The context of {name} is {fits} tokens instead of {context}: its keys and values take {needed}, more than was planned.",
        "{name} 的上下文为 {fits} 个 token，而不是 {context}：其键和值需要 {needed}，超出计划。",
    ),
    "engine.disk_off": (
        "Prefixes are no longer kept on disk: {reason}. Answers are the same; prompts are computed again after a restart.",
        "不再把前缀保存到磁盘：{reason}。回答不受影响；重启后需重新计算提示词。",
    ),
    "engine.disk_slow": ("it did not answer within {seconds:.0f} s", "{seconds:.0f} 秒内没有响应"),
    "engine.closed": ("The server is shutting down.", "服务正在关闭。"),
    "engine.timeout": (
        "The request did not finish within its {seconds} seconds.",
        "请求未能在其 {seconds} 秒内完成。",
    ),
    "engine.bad_logits": (
        "The model produced NaN or infinite logits, so this answer ends here.\n"
        "A weight may be damaged, or the model's arithmetic overflowed.",
        "模型产生了 NaN 或无穷大的 logits，本次回答到此结束。\n权重可能已损坏，或模型计算发生溢出。",
    ),
    "engine.banned_all": (
        "Every token is ruled out, so this answer ends here.\nThe model's logits and logit_bias leave nothing to choose.",
        "所有 token 都被排除，本次回答到此结束。\n模型的 logits 与 logit_bias 没有留下可选的 token。",
    ),
    "engine.no_tools": (
        "This model's chat template has no place for tools, so the model would not know of them.\n"
        "Leave tools out, or take a model that calls tools.",
        "该模型的聊天模板没有工具的位置，模型无从得知它们。\n请去掉 tools，或改用支持工具调用的模型。",
    ),
    "engine.no_scores": (
        "The log-probabilities of a prompt are not to be had of this model.\n"
        "It keeps its own caches and gives the logits of the last token alone.\nLeave out echo or logprobs.",
        "无法获得该模型提示词的对数概率。\n它使用自己的缓存，只给出最后一个 token 的 logits。\n请去掉 echo 或 logprobs。",
    ),
    "engine.no_grammars": (
        "This model's answers cannot be bound to a form: {reason}\nIts tokenizer is of a kind that cannot be read for that.\n"
        "Leave out response_format and its relatives, and tool_choice other than auto and none.",
        "无法约束该模型的回答格式：{reason}\n其分词器类型不支持此功能。\n"
        "请去掉 response_format 及类似字段，以及 auto 和 none 之外的 tool_choice。",
    ),
    "engine.grammar": (
        "The form that the answer is to have cannot be used: {reason}",
        "无法使用所要求的回答格式：{reason}",
    ),
    "engine.grammar_failed": (
        "The form that the answer has to have became too complex, so it ends here: {reason}\n"
        "Simplify the schema, the expression or the grammar.",
        "回答所要求的格式过于复杂，回答到此结束：{reason}\n请简化 schema、正则表达式或语法。",
    ),
    "engine.failed": (
        "The model failed on this request: {reason}\nOther requests are not affected.\nThe server's log has the details.",
        "模型处理该请求时失败：{reason}\n其他请求不受影响。\n详情见服务日志。",
    ),
}

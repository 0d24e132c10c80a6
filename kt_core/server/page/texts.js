// What a person reads here, in the browser's language: Chinese, else English.

export const TEXTS = {
  en: {
    clear: "Clear", machine: "Machine", key: "This server asks for an API key", use: "Use it",
    key_wrong: "The server refused that key.", conversation: "Conversation", question: "Your question",
    hint: "Ask something. Ctrl-Enter sends, Esc stops.", parameters: "Parameters", temperature: "Temperature",
    top_p: "Top-p", max_tokens: "Longest answer, in tokens", rest: "what fits", system: "System prompt",
    again: "Again", stop: "Stop", send: "Send", send_keys: "Ctrl-Enter", you: "You", model: "Answer",
    thinking: "Thinking …", thought: "Thoughts", copy: "Copy", copied: "Copied", copy_answer: "Copy answer",
    loading: "loading: {stage}", ready: "ready", gone: "The server does not answer.", begun: "Waiting …",
    reading: "Reading the prompt: {done} of {all} tokens",
    live: "{tokens} tokens, {speed} tokens/s",
    figures: "{tokens} tokens, {speed} tokens/s; prompt {prompt} tokens, {cached} of them cached",
    stopped: "Stopped.", length: "Cut off: the longest answer or the context is reached.",
    calls: "The model asks for a tool: {names}", broken: "The connection ended before the answer did.",
    now: "Now", running: "Answers that run", waiting: "Requests that wait", answers_speed: "Answers, tokens/s",
    memory: "Memory", resident: "This process", available: "Free on the machine",
    planned: "Planned on {device}", pages: "Cache pages in use", pages_cached: "Cache pages kept for later",
    planned_part: "{part} (planned)", part_weights: "Weights", part_runtime: "Program", part_rows: "Rows", part_cache: "Cache",
    part_templates: "Templates",
    stored: "Weights by part", part_experts: "Experts", part_shared: "Shared experts", part_dense: "Dense blocks",
    part_attention: "Attention", part_embedding: "Embedding", part_head: "Head", part_vision: "Vision",
    part_mtp: "Further-token layers", part_other: "Other", counters: "Since the start", ended: "Answers",
    prompt_tokens: "Prompt tokens", answer_tokens: "Answer tokens", cache_share: "Prompt tokens from the cache",
    experts_map: "Expert use", experts_one: "layer {layer}, expert {expert}: asked {times} times, {share} %",
    experts_note: "A row for each layer, a cell for each expert. Asked {all} times; the busiest took {busiest} % of its layer.",
    experts_away: "The other colour: not on the CPU, {share} % of all.",
    preempted: "Answers set back", plan: "Plan", kernels: "Kernels", threads: "Threads", context: "Context",
    predicted: "Predicted, tokens/s", phase_waiting: "waits", phase_loading: "loads its prefix",
    phase_prefill: "reads {done} of {all}", phase_decode: "answers: {tokens}, {speed} tokens/s",
  },
  zh: {
    clear: "清空", machine: "机器", key: "此服务器需要 API 密钥", use: "使用",
    key_wrong: "服务器拒绝了该密钥。", conversation: "对话", question: "您的问题",
    hint: "请输入问题。Ctrl-Enter 发送，Esc 停止。", parameters: "参数", temperature: "温度",
    top_p: "Top-p", max_tokens: "回答的最大词元数", rest: "上下文允许的长度", system: "系统提示词",
    again: "重新生成", stop: "停止", send: "发送", send_keys: "Ctrl-Enter", you: "您", model: "回答",
    thinking: "思考中……", thought: "思考过程", copy: "复制", copied: "已复制", copy_answer: "复制回答",
    loading: "正在加载：{stage}", ready: "已就绪", gone: "服务器没有响应。", begun: "等待中……",
    reading: "正在读取提示词：{done} / {all} 个词元",
    live: "{tokens} 个词元，{speed} 词元/秒",
    figures: "{tokens} 个词元，{speed} 词元/秒；提示词 {prompt} 个词元，其中 {cached} 个来自缓存",
    stopped: "已停止。", length: "回答被截断：已达到最大长度或上下文上限。",
    calls: "模型请求调用工具：{names}", broken: "连接在回答结束前中断。",
    now: "当前", running: "正在生成的回答", waiting: "排队的请求", answers_speed: "生成速度（词元/秒）",
    memory: "内存", resident: "本进程", available: "机器可用",
    planned: "{device} 计划用量", pages: "使用中的缓存页", pages_cached: "保留的缓存页",
    planned_part: "{part}（计划）", part_weights: "权重", part_runtime: "程序", part_rows: "行缓冲", part_cache: "缓存",
    part_templates: "对话模板",
    stored: "各部分权重", part_experts: "专家", part_shared: "共享专家", part_dense: "稠密层",
    part_attention: "注意力", part_embedding: "词嵌入", part_head: "输出头", part_vision: "视觉",
    part_mtp: "多词元预测层", part_other: "其他", counters: "启动以来", ended: "回答数",
    prompt_tokens: "提示词词元", answer_tokens: "回答词元", cache_share: "来自缓存的提示词词元",
    experts_map: "专家使用情况", experts_one: "第 {layer} 层，专家 {expert}：被选 {times} 次，{share} %",
    experts_note: "每行一层，每格一个专家。共被选 {all} 次；最忙的专家占其所在层的 {busiest} %。",
    experts_away: "另一种颜色：不在 CPU 上，占总数的 {share} %。",
    preempted: "被退回的回答", plan: "计划", kernels: "内核", threads: "线程", context: "上下文",
    predicted: "预测（词元/秒）", phase_waiting: "等待", phase_loading: "正在加载前缀",
    phase_prefill: "读取 {done} / {all}", phase_decode: "已生成 {tokens}，{speed} 词元/秒",
  },
};

export const language = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";

/** The text `key` with its {places} filled. A key that a newer part of the server made up is shown as it is. */
export function t(key, values = {}) {
  return (TEXTS[language][key] ?? key).replace(/{(\w+)}/g, (_, name) => values[name]);
}

/** A number for people: thousands apart, `digits` behind the point. */
export function number(value, digits = 0) {
  return value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Bytes in the unit that leaves one to four digits before the point. */
export function bytes(value) {
  const power = Math.min(Math.max(Math.floor(Math.log2(value || 1) / 10), 0), 4);
  return `${number(value / 1024 ** power, power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** Fills the texts of the document's own elements. */
export function fill() {
  document.documentElement.lang = language;
  const places = { text: "textContent", label: "ariaLabel", hint: "placeholder", title: "title" };
  for (const [data, property] of Object.entries(places)) {
    for (const found of document.querySelectorAll(`[data-${data}]`)) found[property] = t(found.dataset[data]);
  }
}

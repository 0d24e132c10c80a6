"""Messages of the plan room on GPUs: which compute, what lies on them, what is refused."""

MESSAGES: dict[str, tuple[str, str]] = {
    # devices
    "gpus.no_gpu": ("the CPU alone: there is no GPU", "仅用 CPU：没有 GPU"),
    "gpus.engine": (
        "the CPU alone: this version does not compute on {gpu}",
        "仅用 CPU：此版本不支持在 {gpu} 上计算",
    ),
    "gpus.shared": ("the CPU alone: {gpu} has no memory of its own", "仅用 CPU：{gpu} 没有独立显存"),
    "gpus.old": (
        "the CPU alone: {gpu} has compute capability {capability}, and bfloat16 begins with {least}",
        "仅用 CPU：{gpu} 的计算能力为 {capability}，bfloat16 需要 {least} 起",
    ),
    "gpus.others": ("GPUs of one model share the work: {model}", "由同一型号的 GPU 分担：{model}"),
    "gpus.deferred_not": ("this version puts off none: answers do not change", "此版本不推迟：回答不变"),
    "gpus.unfit": ("this version does not compute on it", "此版本不支持在其上计算"),
    "gpus.idle": ("{reason}; without effect: {names}", "{reason}；因此不起作用：{names}"),
    "gpus.small": (
        "what every token needs takes {needed} of a {gpu}, and {budget} may be used",
        "每个 token 都要用到的部分需占用 {gpu} {needed}，而可用为 {budget}",
    ),
    "gpus.left_out": ("the CPU alone: {reason}", "仅用 CPU：{reason}"),
    "gpus.dense": (
        "the CPU alone: a model without experts lies on GPUs whole or not at all; {reason}",
        "仅用 CPU：没有专家的模型只能整个放在 GPU 上；{reason}",
    ),
    "gpus.devices": (
        "{count} x {gpu}: attention and the cache there, experts as far as they fit",
        "{count} x {gpu}：注意力与缓存在其上，专家能放多少放多少",
    ),
    "gpus.devices_some": (
        "{count} x {gpu} hold everything; more would only wait for each other",
        "{count} x {gpu} 已可放下全部；再多只会互相等待",
    ),
    "gpus.no_such_gpu": (
        "Nothing can be computed on {device}.\nReason: {reason}.\nUse --device cpu, or leave it out.",
        "无法在 {device} 上计算。\n原因：{reason}。\n请使用 --device cpu，或不指定。",
    ),
    "gpus.bad_devices": (
        "There are no devices called {devices}.\nKnown: {known}.\nUse these, with commas between several, or leave --device out.",
        "没有名为 {devices} 的设备。\n可选：{known}。\n请使用其中之一，多个用逗号分隔，或不指定 --device。",
    ),
    "gpus.few_gpus": (
        "{count} GPUs are more than there are.\nkt can use {there} of this machine.\nGive fewer to --tensor-parallel-size, or leave it out.",
        "{count} 个 GPU 超过现有数量。\nkt 在本机可用 {there} 个。\n请减少 --tensor-parallel-size，或不指定。",
    ),
    "gpus.two_layouts": (
        "A model cannot be cut in both ways at once: {tensor} and {pipeline}.\nGPUs share every layer, or take a run of layers each.\n"
        "Give --tensor-parallel-size or --pipeline-parallel-size alone.",
        "模型不能同时用两种方式切分：{tensor} 和 {pipeline}。\nGPU 要么共同计算每一层，要么各负责若干层。\n"
        "请只给出 --tensor-parallel-size 或 --pipeline-parallel-size。",
    ),
    "gpus.heads": (
        "{heads} attention heads cannot be shared by {count} GPUs.\nEach takes as many heads as the others.\n"
        "Give a count that divides them, or --pipeline-parallel-size.",
        "{count} 个 GPU 无法均分 {heads} 个注意力头。\n每个 GPU 的头数须相同。\n请使用可整除的个数，或 --pipeline-parallel-size。",
    ),
    # layout
    "gpus.layout_single": ("one GPU", "一个 GPU"),
    "gpus.layout_tensor": (
        "{count} GPUs share every layer: each has a part of its heads and experts",
        "{count} 个 GPU 共同计算每一层：各持有部分注意力头和专家",
    ),
    "gpus.layout_pipeline": (
        "each of the {count} GPUs has a run of layers; sharing every layer is not in this version",
        "{count} 个 GPU 各负责一段层；此版本不支持共同计算每一层",
    ),
    "gpus.layout_latent": (
        "{count} GPUs take a run of layers each: all heads share one latent, which would be kept {count} times",
        "{count} 个 GPU 各负责若干层：所有注意力头共用一个潜变量，否则会保存 {count} 份",
    ),
    "gpus.layout_heads": (
        "{count} GPUs take a run of layers each: {heads} heads of keys cannot be shared evenly",
        "{count} 个 GPU 各负责若干层：{heads} 个键头无法均分",
    ),
    "gpus.vram_budget": ("{part} % of what is free: {size} of each GPU", "空闲显存的 {part}%：每个 GPU {size}"),
    "gpus.bad_vram": (
        "{value} is no part of a GPU's memory.\nKnown: a part from 0 to 1, or a size such as 20GiB.\nGive one of these to --vram-budget, or leave it out.",
        "{value} 不是显存的一部分。\n可用：0 到 1 的比例，或如 20GiB 的大小。\n请为 --vram-budget 给出其一，或不指定。",
    ),
    # what lies there
    "gpus.experts": (
        "as many as fit: {count} of {experts} in each layer; one of each layer takes {each} {form}, {space} are left beside weights and cache",
        "能放下的最大数：每层 {experts} 个中的 {count} 个；每层一个需要 {each}（{form}），权重与缓存之外剩余 {space}",
    ),
    "gpus.experts_all": (
        "all {experts} of each layer fit ({count}): one of each takes {each} {form}, {space} are left beside weights and cache",
        "每层 {experts} 个可全部放下（{count}）：每层一个需要 {each}（{form}），权重与缓存之外剩余 {space}",
    ),
    "gpus.stored": ("as they are stored", "按存储格式"),
    "gpus.bfloat16": (
        "in bfloat16, since GPUs do not compute with the stored form",
        "解码为 bfloat16，因为 GPU 不按该存储格式计算",
    ),
    "gpus.no_experts": ("the model has none", "模型没有专家"),
    "gpus.experts_many": (
        "{count} experts of each layer do not fit on the GPU.\nOne of each layer takes {each}; {space} are left for them.\n"
        "Most that fit: --kt-num-gpu-experts {fits}. To go on at your own risk: --force",
        "GPU 放不下每层 {count} 个专家。\n每层一个需要 {each}；剩余 {space}。\n最多可用：--kt-num-gpu-experts {fits}。自担风险继续：--force",
    ),
    "gpus.bad_ratio": (
        "{value} is no part of the experts.\nIt is a number from 0 to 1.\nGive such a --kt-gpu-experts-ratio, or leave it out.",
        "{value} 不是专家的比例。\n应为 0 到 1 的数。\n请给出这样的 --kt-gpu-experts-ratio，或不指定。",
    ),
    "gpus.ram": (
        "What is left to the CPU does not fit in memory.\n"
        "It takes {needed} with {count} of {experts} experts of each layer on the GPU, {available} are available: {must} would have to be there.\n"
        "Take a shorter --context, or a smaller model or quantization.",
        "留给 CPU 的部分放不进内存。\n"
        "每层 {experts} 个专家中有 {count} 个在 GPU 上时需要 {needed}，可用 {available}：至少要有 {must} 个在 GPU 上。\n"
        "请缩短 --context，或换更小的模型或量化。",
    ),
    "gpus.ram_others": (
        "What is left to the CPU does not fit in memory.\n"
        "It takes {needed} with {count} of {experts} experts of each layer on the GPU, {available} are available: {must} would have to be there.\n"
        "In another format it fits: {names}.",
        "留给 CPU 的部分放不进内存。\n"
        "每层 {experts} 个专家中有 {count} 个在 GPU 上时需要 {needed}，可用 {available}：至少要有 {must} 个在 GPU 上。\n"
        "换一种格式可放下：{names}。",
    ),
    "gpus.context": (
        "A context of {context} tokens does not fit on the GPU.\n{left} are left for it beside the weights that every token needs.\n"
        "The largest that fits: --context {fits}. On the CPU alone: --device cpu",
        "GPU 放不下 {context} 个 token 的上下文。\n除每个 token 都要用到的权重外剩余 {left}。\n可用的最大值：--context {fits}。仅用 CPU：--device cpu",
    ),
    "gpus.no_room": (
        "The model does not fit on {gpu}.\nReason: {reason}.\nUse more GPUs, a shorter --context, or --device cpu.",
        "{gpu} 放不下该模型。\n原因：{reason}。\n请使用更多 GPU、更短的 --context，或 --device cpu。",
    ),
    "gpus.context_own": ("the model's own context, which fits on the GPU", "模型自身的上下文长度，显存足够"),
    "gpus.context_half": (
        "what {size} of a GPU hold; the rest is for experts. Trained for {trained}: --context takes more, for fewer experts there",
        "GPU 上 {size} 可容纳的长度，其余留给专家。模型训练长度为 {trained}：可用 --context 加长，GPU 上的专家相应减少",
    ),
    "gpus.cache": (
        "{size} on the GPUs: {tokens} tokens of all conversations together",
        "GPU 上 {size}：所有对话共 {tokens} 个 token",
    ),
    "gpus.placement_uniform": (
        "as many in every layer; no counts of experts were given",
        "每层个数相同；未给出专家统计",
    ),
    "gpus.moving_no_ram": (
        "as many in every layer; they cannot change, since the CPU's memory does not hold all experts: {must} of each layer must be here",
        "每层个数相同；CPU 内存放不下全部专家（每层须有 {must} 个在此），因此不能更换",
    ),
    "gpus.placement_counted": ("those that were asked most, by the counts given", "按所给统计选取最常用的专家"),
    "gpus.bad_placement": (
        "There is no placement called {value}.\nKnown: {known}.\nGive one of these, or leave it out.",
        "没有名为 {value} 的放置策略。\n可选：{known}。\n请使用其中之一，或不指定。",
    ),
    "gpus.no_statistics": (
        "Placement by frequency needs to know how often experts are asked.\nNo counts are given.\nGive --init-expert-location FILE, or leave the placement out.",
        "按频率放置需要专家调用统计。\n未给出统计。\n请给出 --init-expert-location FILE，或不指定放置策略。",
    ),
    "gpus.deferred_none": ("nothing is put off: answers do not change", "不推迟：回答不变"),
    "gpus.deferred": (
        "chosen by the user; answers change a little with each expert put off",
        "由用户指定；每推迟一个专家，回答会略有变化",
    ),
    "gpus.not_between": (
        "{name} cannot be {value}.\nIt is a whole number from {low} to {high}.\nLeave it out to let kt decide.",
        "{name} 不能为 {value}。\n应为 {low} 到 {high} 的整数。\n不指定则由 kt 决定。",
    ),
    "gpus.threads_spared": (
        "{reason}; {count} fewer, for the GPUs' own threads",
        "{reason}；减去 {count} 个，留给 GPU 自己的线程",
    ),
    # prompts
    "gpus.stream": (
        "from here on copying a layer's experts at {rate} GB/s takes less time than computing with them on the CPU",
        "达到该数后，以 {rate} GB/s 复制一层专家比在 CPU 上计算更快",
    ),
    "gpus.stream_slow": (
        "none: copies at {rate} GB/s are slower than this CPU for any step up to {most} tokens",
        "无：{most} 个 token 以内的步骤，以 {rate} GB/s 复制都比本机 CPU 慢",
    ),
    "gpus.stream_form": (
        "none: GPUs do not compute with the stored form of these experts",
        "无：GPU 不能按存储格式计算这些专家",
    ),
    "gpus.stream_unknown": (
        "none: the rates of the GPU's link and of the CPU are not known",
        "无：GPU 链路与 CPU 的速率未知",
    ),
    "gpus.stream_no_room": (
        "none: a layer's experts take {size} of the GPU, which the cache and experts need",
        "无：一层专家需占显存 {size}，应留给缓存和专家",
    ),
    "gpus.stream_nothing": ("none: no experts are left to the CPU", "无：没有专家留给 CPU"),
    "gpus.chunk": ("tokens of a prompt computed in one step", "一步计算的提示 token 数"),
    "gpus.chunk_streamed": (
        "tokens of a prompt computed in one step; the more, the less the copies count",
        "一步计算的提示 token 数；越多，复制的开销占比越小",
    ),
    "gpus.chunk_small": (
        "Steps of {chunk} tokens never stream layers to the GPU.\nThe threshold for that is {threshold}.\n"
        "Give a larger --chunked-prefill-size, or a smaller --kt-gpu-prefill-token-threshold.",
        "每步 {chunk} 个 token 永远不会逐层送往 GPU。\n其阈值为 {threshold}。\n请加大 --chunked-prefill-size，或减小 --kt-gpu-prefill-token-threshold。",
    ),
    # words of the plan page
    "gpus.off": ("off", "关闭"),
    "gpus.memory_experts": ("experts", "专家"),
    "gpus.memory_layer": ("a streamed layer", "逐层传送的一层"),
}

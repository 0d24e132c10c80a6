"""Messages of `kt tune`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "tune.help": (
        "Find the settings that make a model fastest on this machine, by measuring\n"
        "A server is started for each trial and asked for a long prompt, a long answer, and many answers together. The fastest settings "
        "are measured again in turn with the plan's own, and kept only if they win; kt run then plans with them. Run it on an idle machine.",
        "通过测量找出使模型在本机最快的设置\n每次试验启动一个服务，测量长提示、长回答以及多个并发回答。"
        "最快的设置会与计划自身的设置交替复测，胜出才保留；此后 kt run 按其计划。请在空闲的机器上运行。",
    ),
    "tune.examples": ("kt tune demo\nkt tune demo --forget", "kt tune demo\nkt tune demo --forget"),
    "tune.repeats": ("Requests of each kind in a trial; default: 2", "每次试验中各类请求的次数；默认为 2"),
    "tune.deferral": (
        "On a GPU, also try leaving 1 or 2 experts of a token to the next layer, which changes answers; default: not tried",
        "在 GPU 上还尝试将每个 token 的 1 或 2 个专家推迟到下一层（会改变回答）；默认不尝试",
    ),
    "tune.forget": ("Forget what was found for the model", "忘记为该模型找到的设置"),
    "tune.forgotten": ("Plans of {name} are kt's own again.", "{name} 的计划恢复为 kt 自身的设置。"),
    "tune.unknown": ("Nothing was found for {name} on this machine.", "本机没有为 {name} 找到过设置。"),
    "tune.stage": ("Trials", "试验"),
    "tune.stage_again": ("Measuring the fastest again", "复测最快的设置"),
    "tune.searched": ("Search, one trial for each row:", "搜索，每行一次试验："),
    "tune.again": (
        "Measured again, the plan's own settings and the fastest in turn; this decides:",
        "复测，计划自身的设置与最快的设置交替进行；以此为准：",
    ),
    "tune.column_settings": ("SETTINGS", "设置"),
    "tune.column_score": ("SCORE", "得分"),
    "tune.plans_own": ("the plan's own", "计划自身"),
    "tune.found": (
        "{name} is {gain} times as fast with {settings}. kt run takes these from now on.",
        "{name} 采用 {settings} 时速度为原来的 {gain} 倍。此后 kt run 将采用这些设置。",
    ),
    "tune.not_confirmed": (
        "The fastest settings of the search were not faster every time: {name} keeps the plan's own.",
        "搜索中最快的设置并非每次都更快：{name} 保留计划自身的设置。",
    ),
    "tune.default": (
        "Nothing is faster than the plan's own settings for {name}.",
        "对于 {name}，没有比计划自身更快的设置。",
    ),
    "tune.from_tuning": ("tuned", "调优"),
    "tune.reason": (
        "Measured by kt tune: {gain} times as fast as the plan's own choice.",
        "由 kt tune 测得：速度为计划自身选择的 {gain} 倍。",
    ),
}

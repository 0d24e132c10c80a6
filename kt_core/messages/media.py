"""Messages about images and videos in requests."""

MESSAGES: dict[str, tuple[str, str]] = {
    "media.no_vision": (
        "This model reads text only here, so it cannot look at images or videos.\n"
        "Send text, or serve a model that reads images; the server's log says at its start why one does not.",
        "该模型在此仅能读取文本，无法查看图像或视频。\n请发送文本，或改用能读图的模型；原因见服务启动时的日志。",
    ),
    "media.too_many": (
        "The request brings images and videos: {images} and {videos}.\nAt most {most_images} and {most_videos} go into one request.",
        "该请求包含 {images} 张图像和 {videos} 个视频。\n一次请求最多 {most_images} 张图像和 {most_videos} 个视频。",
    ),
    "media.mixed": (
        "This model takes images or a video in one request, not both.\nSend them in two requests.",
        "该模型一次请求只接受图像或视频之一。\n请分两次请求发送。",
    ),
    "media.sizes": ("The frames of a video must have one size.", "视频各帧的尺寸必须相同。"),
    "media.no_video": (
        "This {format} file is a single image, not a video.\nAnimated GIF, WebP and PNG files, and lists of images, are read as videos.",
        "该 {format} 文件是单张图像，不是视频。\n可作为视频读取的有：动态 GIF、WebP、PNG，以及图像列表。",
    ),
    "media.large": (
        "An image or video of {width} x {height} pixels and {frames} frames is too large to unpack.\nScale it down first.",
        "{width} x {height} 像素、{frames} 帧的图像或视频过大，无法解码。\n请先缩小。",
    ),
    "media.file": (
        "An image or video has {size} MiB; at most {limit} are read.",
        "图像或视频为 {size} MiB；最多读取 {limit} MiB。",
    ),
    "media.unreadable": (
        "An image or video cannot be read: {reason}.\nThese formats are: {known}.",
        "无法读取图像或视频：{reason}。\n可读取的格式：{known}。",
    ),
    "media.shape": (
        "The model's image processor refused an image: {reason}",
        "模型的图像处理器拒绝了一张图像：{reason}",
    ),
    "media.places": (
        "The prompt has places for {places} and the request brings {count} of the kind {kind}.\n"
        "The messages' text may hold the model's own mark for one, or its chat template has no place for them.",
        "提示词中有 {places} 处 {kind} 的位置，而请求带来 {count} 个。\n消息文本可能含有模型自身的标记，或对话模板没有相应位置。",
    ),
    "media.no_videos": (
        "This model is served here for images, not for videos.\nSend frames of the video as images.",
        "该模型在此仅支持图像，不支持视频。\n请将视频的若干帧作为图像发送。",
    ),
    "media.remote": (
        "{field}: images are not fetched from {host}.\nSend the image itself as a data URL, or allow the host: kt config set server.media_hosts {host}",
        "{field}：不会从 {host} 获取图像。\n请以 data URL 发送图像本身，或允许该主机：kt config set server.media_hosts {host}",
    ),
    "media.fetch": ("{field}: {url} cannot be fetched: {reason}.", "{field}：无法获取 {url}：{reason}。"),
    "media.text_only": (
        "{name} is served for text alone, its images are refused: {reason}",
        "{name} 仅提供文本服务，不接受图像：{reason}",
    ),
}

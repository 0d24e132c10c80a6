"""The loop of a conversation: read, answer, repeat."""

from kt_cli import output
from kt_cli.chat import commands
from kt_cli.chat.prompt import Emptied, Reader
from kt_cli.chat.session import Chat, ask
from kt_core.messages import t


def talk(chat: Chat) -> None:
    """Read, answer, repeat. Ctrl-D ends it; so does Ctrl-C twice at an empty prompt, by KeyboardInterrupt."""
    read = Reader(commands.completions(chat))
    warned = False
    while not chat.done:
        try:
            line = read.question()
        except EOFError:
            return
        except Emptied:  # Ctrl-C with something typed throws that away and no more
            warned = False
            continue
        except KeyboardInterrupt:
            if warned:
                raise
            warned = True
            output.muted(t("chat.again"))
            continue
        warned = False
        if commands.is_command(line):
            commands.run(chat, line)
        elif line.strip() and not commands.took_images(chat, line):
            ask(chat, line)

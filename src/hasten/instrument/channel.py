"""The child's end of the protocol."""

from __future__ import annotations

import os
import socket

from hasten.protocol import Message, decode, encode


class Channel:
    """Messages to and from the parent over an inherited socket."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # commands that the script starts don't get it
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._rest = b""
        # Forked workers would otherwise keep the connection open after this process has ended.
        os.register_at_fork(after_in_child=self.close)

    def send(self, message: Message) -> None:
        """Send one message. A parent that is gone ends this process at once."""
        try:
            self._socket.sendall(encode(message))
        except OSError:
            leave()

    def receive(self) -> Message:
        """Wait for the next message. A parent that is gone ends this process at once."""
        while b"\n" not in self._rest:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                leave()
            if not data:
                leave()
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return decode(line)

    def close(self) -> None:
        """Give up the connection, in this process only."""
        self._socket.close()


def leave(status: int = 0) -> None:
    """End this process with nothing of the script running any more.

    `finally` blocks, bare `except`, atexit handlers and threads of the script could all write
    or go on after any exception; the parent then kills what is left of the group.
    """
    os._exit(status)

"""Adapter for aioquic: a foreign QUIC below a foreign MQTT.

No MQTT client for Python speaks QUIC by itself, so this one is paho-mqtt (the adapter
beside this one, as a child process), whose connections go to a bridge in this process:
TCP on its side, one bidirectional stream of aioquic with ALPN `mqtt` on the broker's.
See ../../README.md for the protocol on standard input and output.
"""

import asyncio
import json
import sys
from pathlib import Path

from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

PAHO = Path(__file__).resolve().parent.parent / "paho-python" / "adapter.py"


async def pump(reader, writer):
    """Copy until the end, and say the end."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (ConnectionError, OSError, asyncio.CancelledError):
        pass


class Bridge:
    """Takes the connections of one request to the broker."""

    def __init__(self, request):
        self._host, self._port = request["host"], request["port"]
        self._ca = request["ca"]

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["mqtt"])
        configuration.load_verify_locations(cafile=self._ca)
        try:
            async with connect(self._host, self._port, configuration=configuration) as quic:
                quic_reader, quic_writer = await quic.create_stream()
                up = asyncio.ensure_future(pump(reader, quic_writer))
                await pump(quic_reader, writer)
                # The broker has ended the stream; what it has not read, it does not want.
                up.cancel()
                quic.close()
        except (ConnectionError, OSError) as problem:
            print(f"bridge: {problem!r}", file=sys.stderr)
        finally:
            writer.close()


async def main():
    paho = await asyncio.create_subprocess_exec(
        sys.executable, PAHO, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        limit=1 << 26)
    requests = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)

    async def answers():
        while line := await paho.stdout.readline():
            said = json.loads(line)
            if "hello" in said:
                said["hello"] = "aioquic"
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()

    told = asyncio.ensure_future(answers())
    while line := await requests.readline():
        request = json.loads(line)
        if request["op"] == "connect":
            port = await Bridge(request).start()
            request |= {"host": "127.0.0.1", "port": port, "transport": "tcp", "ca": None}
        paho.stdin.write(json.dumps(request).encode() + b"\n")
        await paho.stdin.drain()
    paho.stdin.close()
    await told


asyncio.run(main())

"""Connects two network interfaces by a link with a delay, for kernels without netem. Runs until it is killed.

    delayed_link.py <interface> <interface> <milliseconds>
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 263, 15, 4
EVERYTHING = 3  # ETH_P_ALL
MAX_FRAME_BYTES = 1 << 17


def open_interface(interface):
    """Returns a socket for frames as inside the kernel, large and without checksums, with a header that states this."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, option, 1 << 26)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def received_frames(end):
    try:
        while True:
            frame, address = end.recvfrom(MAX_FRAME_BYTES)
            if address[2] != PACKET_OUTGOING:
                yield frame
    except BlockingIOError:
        return


def main():
    first, second = (open_interface(name) for name in sys.argv[1:3])
    delay = float(sys.argv[3]) / 1000
    other = {first: second, second: first}
    in_flight = collections.deque()  # (arrival time, socket, frame)
    while True:
        wait = max(0, in_flight[0][0] - time.monotonic()) if in_flight else None
        for end in select.select([first, second], [], [], wait)[0]:
            for frame in received_frames(end):
                in_flight.append((time.monotonic() + delay, other[end], frame))
        while in_flight and in_flight[0][0] <= time.monotonic():
            _, end, frame = in_flight.popleft()
            try:
                end.send(frame)
            except OSError as error:  # a full queue drops frames, like a real link
                print(f"dropped {len(frame)} bytes: {error}", file=sys.stderr)


main()

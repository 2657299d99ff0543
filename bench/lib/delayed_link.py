"""A cable with a delay between two network interfaces, for kernels without netem: every frame that comes out of one goes into the
other so many milliseconds later. Runs until it is killed.

    delayed_link.py <interface> <interface> <milliseconds>
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 263, 15, 4
EVERYTHING = 3  # ETH_P_ALL
LARGEST = 1 << 17


def end_of_cable(interface):
    """Frames as they are inside the kernel, large and without checksums, with the header that says so."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, option, 1 << 26)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def take(end):
    try:
        while True:
            frame, address = end.recvfrom(LARGEST)
            if address[2] != PACKET_OUTGOING:
                yield frame
    except BlockingIOError:
        return


def main():
    first, second = (end_of_cable(name) for name in sys.argv[1:3])
    delay = float(sys.argv[3]) / 1000
    other = {first: second, second: first}
    on_the_way = collections.deque()  # (when it arrives, where, what)
    while True:
        wait = max(0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        for end in select.select([first, second], [], [], wait)[0]:
            for frame in take(end):
                on_the_way.append((time.monotonic() + delay, other[end], frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, end, frame = on_the_way.popleft()
            try:
                end.send(frame)
            except OSError as error:  # as a cable does, it loses what there is no room for
                print(f"lost {len(frame)} bytes: {error}", file=sys.stderr)


main()

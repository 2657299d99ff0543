"""Serves the files of a folder like an S3 server that needs no credentials: HEAD and GET with ranges and ETags.

usage: object_store_server.py FOLDER
Prints its port. Content is sent by the kernel, so that the server takes almost no processor time.
"""

import http.server
import os
import re
import sys
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        path = os.path.join(sys.argv[1], urllib.parse.unquote(self.path.split("?")[0]).lstrip("/"))
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(wanted[1]), int(wanted[2])) if wanted else (0, size - 1)
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", f'"{size}"')
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            self.wfile.flush()
            while with_body and first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last - first + 1)


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()

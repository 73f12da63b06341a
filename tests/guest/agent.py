#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs verbs programs on a node for the tests: one process each, forked from this one, which has loaded all modules.

Standard input has requests, one a line: a program's number and a JSON object. Answers go to standard output in the
same form. A number that is new starts a program; {"end": true} lets it close what it has, {"kill": true} does not.
"""

import json
import os
import selectors
import signal
import socket
import sys
import traceback

from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

from program import Program


def answer(program, request):
    """Calls what a request names; a failure is an answer too."""
    try:
        method = getattr(program, request["method"])
        return {"value": method(*request["args"], **request["options"])}
    except PyverbsRDMAError as error:
        return {"errno": error.error_code, "error": str(error)}
    except OSError as error:
        return {"errno": error.errno, "error": str(error)}
    except (PyverbsError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        return {"errno": None, "error": traceback.format_exc()}


def run_program(stream):
    """A program's process: answers requests until there are no more."""
    program = Program()
    for line in stream:
        stream.write(json.dumps(answer(program, json.loads(line))) + "\n")
        stream.flush()
    program.close()


class Programs:
    """The processes that run, and the streams to them."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        # Unbuffered, or a request could wait in a buffer while the selector waits for the file.
        self.requests = open(sys.stdin.fileno(), "rb", buffering=0)
        self.selector.register(self.requests, selectors.EVENT_READ)
        self.processes = {}
        self.sockets = {}
        self.streams = {}

    def start(self, number):
        ours, its = socket.socketpair()
        process = os.fork()
        if process == 0:
            ours.close()
            for other in self.sockets.values():
                os.close(other.fileno())
            try:
                with its, its.makefile("rw") as stream:
                    run_program(stream)
                os._exit(0)
            finally:
                os._exit(1)  # whatever went wrong, this is not the parent
        its.close()
        self.processes[number] = process
        self.streams[number] = ours.makefile("rw")
        self.sockets[number] = ours
        self.selector.register(ours, selectors.EVENT_READ, number)

    def end(self, number, sign):
        """Ends a program and waits for it; returns its exit status, None if it had ended."""
        if number not in self.processes:
            return None
        connection = self.sockets.pop(number)
        self.selector.unregister(connection)
        self.streams.pop(number).close()
        connection.close()
        process = self.processes.pop(number)
        if sign:
            os.kill(process, sign)
        return os.waitpid(process, 0)[1]

    def request(self, line):
        number, _, text = line.partition(" ")
        request = json.loads(text)
        if "kill" in request or "end" in request:
            status = self.end(number, signal.SIGKILL if "kill" in request else 0)
            print(number, json.dumps({"ended": status}), flush=True)
            return
        if number not in self.streams:
            self.start(number)
        self.streams[number].write(text)
        self.streams[number].flush()

    def reply(self, number):
        line = self.streams[number].readline()
        if line:
            print(number, line, end="", flush=True)
        else:
            status = self.end(number, 0)
            print(number, json.dumps({"errno": None, "error": f"the program ended, wait status {status}"}), flush=True)

    def serve(self):
        while True:
            for key, _ in self.selector.select():
                if key.data is not None:
                    if key.data in self.streams:
                        self.reply(key.data)
                    continue
                line = self.requests.readline()
                if not line:
                    return
                self.request(line.decode())


if __name__ == "__main__":
    print("ready", flush=True)
    Programs().serve()

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a verbs program does that takes much of a device, or looks at its doorbell pages."""

import ctypes
import mmap
import os
import resource
import struct

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MW
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError

ENTRIES = 16
SLOT = struct.Struct("<IIII")
SLOTS = 128


def doorbell_mappings():
    """Address and offset of each mapping of the device that has doorbell slots: the word that is the driver's is 1 in all."""
    with open("/proc/self/maps") as file:
        found = [line.split() for line in file if "/dev/infiniband/" in line]
    places = [(int(words[0].split("-")[0], 16), int(words[2], 16)) for words in found]
    return [place for place in places if all(slot[3] == 1 for slot in slots_of(ctypes.string_at(place[0], mmap.PAGESIZE)))]


def slots_of(page):
    return [SLOT.unpack_from(page, number * SLOT.size) for number in range(SLOTS)]


class Many:
    """Methods of programs (program.py)."""

    def enter_user_namespace(self):
        """Goes into a user namespace of its own, which has no ids yet."""
        os.unshare(os.CLONE_NEWUSER)

    def set_user(self, user):
        os.setuid(user)

    def contexts(self, device, count):
        """Opens the device so many times, with a completion queue each; how many that are, and the errno of the next one."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for made in range(count):
            try:
                context = Context(name=device)
                self.add((context, CQ(context, ENTRIES)))
            except PyverbsRDMAError as error:
                return made, error.error_code
        return count, 0

    def objects_until_refused(self, kind, count):
        """Makes so many memory windows or protection domains; how many there are, and the errno of the next one."""
        pd = PD(self.context) if kind == "window" else None
        for made in range(count):
            try:
                self.add(MW(pd, e.IBV_MW_TYPE_2) if pd else PD(self.context))
            except PyverbsRDMAError as error:
                return made, error.error_code
        return count, 0

    def processes(self, device, count):
        """Starts so many processes that open the device and make a completion queue; how many have one, and the errnos of
        the others. They end with this one."""
        results, answers = os.pipe()
        self.children_end, end = os.pipe()
        for _ in range(count):
            if os.fork() == 0:
                os.close(end)
                self.child(device, answers)
                os.read(self.children_end, 1)
                os._exit(0)
        self.end_of_children = end
        found = [struct.unpack("<i", os.read(results, 4))[0] for _ in range(count)]
        return found.count(0), sorted(set(found) - {0})

    def child(self, device, answers):
        """Makes a queue that stays until the process ends, and tells how that went."""
        try:
            context = Context(name=device)
            self.add((context, CQ(context, ENTRIES)))
            code = 0
        except PyverbsRDMAError as error:
            code = error.error_code
        os.write(answers, struct.pack("<i", code))

    def fill_doorbell_pages(self, byte):
        """Writes everywhere into the doorbell pages; their number."""
        pages = doorbell_mappings()
        for address, _ in pages:
            ctypes.memset(address, byte, mmap.PAGESIZE)
        return len(pages)

    def used_doorbell_words(self):
        """Of each doorbell page, what is not as on a new one: slots that are not 0, and whether there is anything else."""
        found = []
        for address, _ in doorbell_mappings():
            page = ctypes.string_at(address, mmap.PAGESIZE)
            slots = {number: slot for number, slot in enumerate(slots_of(page)) if slot != (0, 0, 0, 1)}
            found.append((slots, any(page[SLOTS * SLOT.size :])))
        return found

    def child_maps(self):
        """How many mappings of doorbell pages a child inherits, and the errno with which it may not map one by the file."""
        (_, offset), *_ = doorbell_mappings()
        results, answers = os.pipe()
        if (child := os.fork()) == 0:
            code = 0
            inherited = len(self.mappings())
            try:
                mmap.mmap(self.context.cmd_fd, mmap.PAGESIZE, offset=offset).close()
            except OSError as error:
                code = error.errno
            os.write(answers, struct.pack("<ii", inherited, code))
            os._exit(0)
        os.waitpid(child, 0)
        return struct.unpack("<ii", os.read(results, 8))

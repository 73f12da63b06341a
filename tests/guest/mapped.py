# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory devices (Documentation/memory.md) as programs have them, for program.py: opened by path and mapped. No verbs."""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import struct
import time

from pattern import difference, not_zero, pattern
from share import LIBRARY

HUGE_PAGE = 2 << 20
MAP_FIXED = 0x10
EXPORT_DMABUF = 0xDC00  # NUPA_MEMORY_EXPORT_DMABUF of include/uapi/linux/nupa_memory.h
EXPORT_SIZE = 32  # bytes of struct nupa_memory_dmabuf
PIDFD_GETFD = 438  # a system call
PRIME_FD_TO_HANDLE = 0xC00C642E  # _IOWR('d', 0x2e, struct drm_prime_handle)
MODES = {"R": os.O_RDONLY, "W": os.O_WRONLY, "RW": os.O_RDWR}
PROTECTIONS = {"R": mmap.PROT_READ, "W": mmap.PROT_WRITE, "X": mmap.PROT_EXEC}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.remap_file_pages.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t, ctypes.c_int)


def bits(protection):
    return sum(PROTECTIONS[letter] for letter in protection)


def checked(result):
    """What a call of the C library returned, unless it failed."""
    if result in (-1, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def ending(mapping):
    """The signal that ends a process, forked off, which reads the first byte and writes it back; None if it goes on."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        mapping[0] = mapping[0]
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None


def reaches(mapping):
    """Whether this process itself still has the first byte, which it hands to the kernel. A child would have its pages mapped anew."""
    ends = os.pipe()
    try:
        with memoryview(mapping) as view, view[:1] as byte:
            os.write(ends[1], byte)
        return True
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        return False
    finally:
        for end in ends:
            os.close(end)


def exported(file, offset, length, mode="RW", flags=0, **other):
    """The descriptor of a DMA buffer of a part of a device. `other`: fields that ought to be as they are by default."""
    asked = struct.pack("=IIQQII", other.get("size", EXPORT_SIZE), MODES[mode] | flags, offset, length, other.get("more_flags", 0),
                        other.get("reserved", 0))
    return fcntl.ioctl(file, EXPORT_DMABUF, bytearray(asked + bytes.fromhex(other.get("behind", ""))))


class Mapped:
    """The part of a program that maps a memory device."""

    def map_open(self, path, write=True):
        file = os.open(path, os.O_RDWR if write else os.O_RDONLY)
        return self.add(file, size=os.lseek(file, 0, os.SEEK_END))

    def map_close(self, file):
        os.close(self.objects[file])

    def map_export(self, file, offset, length, mode="RW", cloexec=True, **other):
        """A DMA buffer of a part of a device."""
        made = exported(self.objects[file], offset, length, mode, os.O_CLOEXEC if cloexec else 0, **other)
        assert os.get_inheritable(made) != cloexec
        return self.add(made, file=made, size=os.lseek(made, 0, os.SEEK_END))

    def map_path(self, file):
        """A descriptor of where a file is, which does not keep it open (O_PATH)."""
        return self.add(os.open(f"/proc/self/fd/{self.objects[file]}", os.O_PATH))

    def map_take(self, pid, file):
        """Another process's DMA buffer, as if that had sent it."""
        taken = checked(libc.syscall(PIDFD_GETFD, os.pidfd_open(pid), file, 0))
        return self.add(taken, file=taken, size=os.lseek(taken, 0, os.SEEK_END))

    def map_ioctl(self, file, number, data):
        """Some other request."""
        fcntl.ioctl(self.objects[file], number, bytes.fromhex(data))

    def map_peek(self, address, size):
        return ctypes.string_at(address, size).hex()

    def map_remap(self, address, size, page):
        """Maps another part of the same file there, as nobody does any more."""
        checked(libc.remap_file_pages(address, size, 0, page, 0))

    def map_import(self, file, kind="dynamic"):
        """Has the device of tests/importer import a DMA buffer."""
        device = os.open("/dev/nupa_importer", os.O_RDWR)
        try:
            os.write(device, f"{file} {kind}".encode())
        except OSError:
            os.close(device)
            raise
        return self.add(device)

    def map_import_load(self, device, offset, size):
        """What that device reads."""
        data = b""
        while len(data) < size:
            data += os.pread(self.objects[device], size - len(data), offset + len(data))
        return data.hex()

    def map_import_store(self, device, offset, text):
        """Has that device write within a page."""
        os.pwrite(self.objects[device], bytes.fromhex(text), offset)

    def map_give_to_graphics(self, path, file):
        """Has a driver of graphics import a DMA buffer."""
        with open(path, "rb+", buffering=0) as device:
            fcntl.ioctl(device, PRIME_FD_TO_HANDLE, struct.pack("=IIi", 0, 0, file))

    def map_map(self, file, size, offset=0, protection="RW", private=False):
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        return self.add(mmap.mmap(self.objects[file], size, flags, bits(protection), offset=offset), size=size)

    def map_at(self, file, size, offset=0, protection="RW", address=None):
        """Maps without an object of Python's; returns the address, which may be the caller's choice."""
        flags = mmap.MAP_SHARED | (MAP_FIXED if address else 0)
        return checked(libc.mmap(address, size, bits(protection), flags, self.objects[file], offset))

    def map_unmap_at(self, address, size):
        checked(libc.munmap(address, size))

    def map_protect_at(self, address, size, protection):
        checked(libc.mprotect(address, size, bits(protection)))

    def map_unmap(self, mapping):
        self.objects[mapping].close()

    def map_fill(self, mapping, seed, offset=0, size=None):
        """Returns how many pages the kernel had to map for it."""
        mapping = self.objects[mapping]
        size = len(mapping) - offset if size is None else size
        data = pattern(seed, size)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        mapping[offset : offset + size] = data
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def map_check(self, mapping, seed, offset=0, size=None):
        """Words on the first byte that is not of the pattern, or None."""
        mapping = self.objects[mapping]
        size = len(mapping) - offset if size is None else size
        return difference(mapping[offset : offset + size], pattern(seed, size))

    def map_load(self, mapping, offset, size):
        return self.objects[mapping][offset : offset + size].hex()

    def map_left(self, mapping):
        """Where the first byte is that is not zero, and what is there; None if there is no such byte."""
        return not_zero(self.objects[mapping][:])

    def map_count(self, mapping, times):
        """Increments the first word so many times, by atomic instructions."""
        library = ctypes.CDLL(LIBRARY)
        word = ctypes.c_uint64.from_buffer(self.objects[mapping])
        library.share_count(ctypes.c_void_p(ctypes.addressof(word)), ctypes.c_uint32(times))

    def map_word(self, mapping):
        return int.from_bytes(self.objects[mapping][:8], "little")

    def map_race(self, path, seconds, dmabuf=False):
        """Opens, maps and touches a device that comes and goes, itself or by a DMA buffer; counts what happened to processes that did."""
        counts = dict.fromkeys(("opened", "touched", "SIGBUS"), 0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                file = os.open(path, os.O_RDWR)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
                    raise
                continue
            files = [file]
            try:
                if dmabuf:
                    files.append(exported(file, 0, mmap.PAGESIZE))
                with mmap.mmap(files[-1], mmap.PAGESIZE) as mapping:
                    counts[ending(mapping) or "touched"] += 1
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
            finally:
                for each in files:
                    os.close(each)
            counts["opened"] += 1
        return counts

    def map_fork(self, mapping, path, seconds):
        """Forks off processes all the time until the device is gone, or for so long. Says of the last fifty how they ended when they touched the
        mapping, and how many were forked before."""
        before, end = 0, time.monotonic() + seconds
        while True:
            release, children = self.forked(self.objects[mapping], 50)
            gone = not os.path.exists(path)
            os.close(release)
            ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            if gone or time.monotonic() > end:
                return {"before": before, "lived": ends.count(0), "SIGBUS": ends.count(-signal.SIGBUS)}
            before += len(ends)

    def forked(self, memory, count):
        """Processes that touch memory when what this returns first is closed."""
        waits, release = os.pipe()
        children = []
        for _ in range(count):
            child = os.fork()
            if child == 0:
                try:
                    signal.signal(signal.SIGBUS, signal.SIG_DFL)
                    os.close(release)
                    os.read(waits, 1)
                    for at in range(0, len(memory), HUGE_PAGE):
                        memory[at] = 1
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        os.close(waits)
        return release, children

    def map_ending(self, mapping):
        """The signal that ends a child that touches it; None if there is none."""
        return ending(self.objects[mapping])

    def map_touch(self, mapping):
        """The signal that ends who touches it, this process as its children; None if there is none. Not while the device ends: they touch it one after the other."""
        signal_of_child = self.map_ending(mapping)
        assert reaches(self.objects[mapping]) == (signal_of_child is None)
        return signal_of_child

"""tools/lower_glibc.py VERSION FILE...: makes shared objects that were linked here ask for the symbols that they would
have been linked with on a machine of glibc VERSION.

A linker takes a symbol's newest version: pthread_create@GLIBC_2.34 came with the move of libpthread into libc, and the
machine's own libc still has pthread_create@GLIBC_2.2.5 for programs of old. Each symbol gets the newest of its versions
here that VERSION has too, as if VERSION's libc had been linked; one that VERSION does not have at all is an error.
Then the libraries that such symbols were in before the move are asked for as well (patchelf must be in PATH).
"""
import re
import struct
import subprocess
import sys

from elftools.elf.elffile import ELFFile

MOVED = ("libpthread.so.0", "libdl.so.2")  # into libc, by glibc 2.34


def number(version):
    """GLIBC_2.3.4 -> (2, 3, 4); None for versions of others."""
    name = re.fullmatch(r"GLIBC_([0-9.]+)", version)
    return tuple(map(int, name[1].split("."))) if name else None


def elf_hash(name):
    h = 0
    for byte in name.encode():
        h = (h << 4) + byte
        h = (h ^ (h >> 24 & 0xF0)) & 0x0FFFFFFF
    return h


def defined_versions(library):
    """Symbol -> the versions that the library of this machine has of it."""
    path = subprocess.run(["gcc", f"-print-file-name={library}"], capture_output=True, text=True,
                          check=True).stdout.strip()
    versions = {}
    with open(path, "rb") as file:
        elf = ELFFile(file)
        names = {definition["vd_ndx"]: next(auxiliary).name
                 for definition, auxiliary in elf.get_section_by_name(".gnu.version_d").iter_versions()}
        indices = elf.get_section_by_name(".gnu.version")
        for i, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            index = indices.get_symbol(i)["ndx"]
            if symbol["st_shndx"] != "SHN_UNDEF" and isinstance(index, int):
                versions.setdefault(symbol.name, []).append(names[index & 0x7FFF])
    return versions


class Object:
    """A shared object's bytes, and where in them its wants are written."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self.bytes = bytearray(file.read())
            file.seek(0)
            elf = ELFFile(file)
            self.symbols = [symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()]
            strings, wants = elf.get_section_by_name(".dynstr"), elf.get_section_by_name(".gnu.version_r")
            self.versym = elf.get_section_by_name(".gnu.version")["sh_offset"]
            self.strings = strings.data()
            self.first, self.count = wants["sh_offset"], wants["sh_info"]

    def string(self, offset):
        return self.strings[offset:self.strings.index(b"\0", offset)].decode()

    def offset_of(self, text):
        return self.strings.find(b"\0" + text.encode() + b"\0") + 1  # 0 where it is not there

    def index(self, symbol):
        return struct.unpack_from("<H", self.bytes, self.versym + 2 * symbol)[0] & 0x7FFF

    def set_index(self, symbol, index):
        struct.pack_into("<H", self.bytes, self.versym + 2 * symbol, index)

    def libraries(self):
        """(offset, name) of each library that versions are wanted of (Elf64_Verneed)."""
        at = self.first
        for _ in range(self.count):
            _, _, file, _, following = struct.unpack_from("<HHIII", self.bytes, at)
            yield at, self.string(file)
            at += following

    def versions(self, library):
        """(offset, index, name) of each version that is wanted of it (Elf64_Vernaux)."""
        _, count, _, first, _ = struct.unpack_from("<HHIII", self.bytes, library)
        at = library + first
        for _ in range(count):
            _, _, index, name, following = struct.unpack_from("<IHHII", self.bytes, at)
            yield at, index, self.string(name)
            at += following

    def rename(self, version, name):
        struct.pack_into("<I", self.bytes, version, elf_hash(name))
        struct.pack_into("<I", self.bytes, version + 8, self.offset_of(name))

    def keep(self, library, versions):
        """Leaves these versions (offsets, at least one) in the library's list."""
        struct.pack_into("<H", self.bytes, library + 2, len(versions))
        struct.pack_into("<I", self.bytes, library + 8, versions[0] - library)
        for here, following in zip(versions, [*versions[1:], None]):
            struct.pack_into("<I", self.bytes, here + 12, following - here if following else 0)


def older_versions(elf, limit):
    """(library, symbol, version that is too new) -> the one to ask for instead."""
    older = {}
    for library, file in elf.libraries():
        for _, index, name in elf.versions(library):
            if (number(name) or ()) <= limit:
                continue
            have = defined_versions(file)
            for i, symbol in enumerate(elf.symbols):
                if elf.index(i) == index:
                    known = [v for v in have[symbol] if number(v) and number(v) <= limit]
                    if not known:
                        sys.exit(f"{elf.path}: {symbol}@{name} has no version in glibc {'.'.join(map(str, limit))}")
                    older[file, symbol, name] = max(known, key=number)
    return older


def lower(path, limit):
    elf = Object(path)
    older = older_versions(elf, limit)
    if not older:
        return
    # A name that is added to the list of libraries and removed again stays in the table of strings.
    strings = sorted({name for name in older.values() if not elf.offset_of(name)})
    patchelf(path, "--add-needed", [*MOVED, *strings])
    patchelf(path, "--remove-needed", strings)
    elf = Object(path)
    for library, file in elf.libraries():
        wanted = list(elf.versions(library))
        index_of = {name: index for _, index, name in wanted}
        kept = []
        for at, index, name in wanted:
            symbols = {i: older[file, symbol, name] for i, symbol in enumerate(elf.symbols)
                       if elf.index(i) == index and (file, symbol, name) in older}
            missing = sorted(set(symbols.values()) - set(index_of))
            if len(missing) > 1:
                sys.exit(f"{path}: {name} of {file} has no room for {' and '.join(missing)}")
            if missing:  # takes this one's place
                elf.rename(at, missing[0])
                index_of[missing[0]] = index
            if missing or not symbols:
                kept.append(at)
            for i, version in symbols.items():
                elf.set_index(i, index_of[version])
        elf.keep(library, kept)
    with open(path, "wb") as file:
        file.write(elf.bytes)
    print(f"{path}: {' '.join(sorted(f'{symbol}@{version}' for (_, symbol, _), version in older.items()))}")


def patchelf(path, option, values):
    if values:
        subprocess.run(["patchelf", *(word for value in values for word in (option, value)), path], check=True)


if __name__ == "__main__":
    for given in sys.argv[2:]:
        lower(given, tuple(map(int, sys.argv[1].split("."))))

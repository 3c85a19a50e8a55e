#include "engine/cuda/cubin.h"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace upweave::cuda {
namespace {

// An instruction has 16 bytes since sm_70, and its operation in the low 12 bits.
constexpr uint64_t kHgmma = 0x9f0, kHmma = 0x23c, kStoreLocal = 0x387, kLoadLocal = 0x983;
// .nv.info is a list of (format, attribute, size) and a payload: here a symbol and its value.
constexpr uint8_t kSized = 4, kFrameSize = 0x11, kRegisterCount = 0x2f;

template <class T>
bool get(const std::string& bytes, uint64_t at, T& value) {
  if (at > bytes.size() || bytes.size() - at < sizeof value) return false;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return true;
}

std::string name_at(const std::string& bytes, const Elf64_Shdr& table, uint64_t offset) {
  const uint64_t at = table.sh_offset + offset;
  return at < bytes.size() ? std::string(bytes.c_str() + at) : "";
}

void count(const std::string& cubin, const Elf64_Shdr& text, KernelFacts& facts) {
  uint64_t word = 0;
  for (uint64_t at = 0; at + 16 <= text.sh_size && get(cubin, text.sh_offset + at, word); at += 16) {
    const uint64_t operation = word & 0xfff;
    ++facts.instructions;
    facts.wgmma += operation == kHgmma;
    facts.mma += operation == kHmma;
    facts.local += operation == kStoreLocal || operation == kLoadLocal;
  }
}

}  // namespace

std::map<std::string, KernelFacts> inspect(const std::string& cubin) {
  std::map<std::string, KernelFacts> kernels;
  Elf64_Ehdr header;
  if (!get(cubin, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return kernels;
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  for (size_t i = 0; i < sections.size(); ++i) {
    if (!get(cubin, header.e_shoff + i * header.e_shentsize, sections[i])) return kernels;
  }
  if (header.e_shstrndx >= sections.size()) return kernels;
  const Elf64_Shdr *info = nullptr, *symbols = nullptr;
  const std::string text = ".text.";
  for (const Elf64_Shdr& section : sections) {
    const std::string name = name_at(cubin, sections[header.e_shstrndx], section.sh_name);
    if (name.starts_with(text)) count(cubin, section, kernels[name.substr(text.size())]);
    if (name == ".nv.info") info = &section;
    if (section.sh_type == SHT_SYMTAB) symbols = &section;
  }
  if (!info || !symbols || symbols->sh_link >= sections.size()) return kernels;
  struct Item {
    uint8_t format, attribute;
    uint16_t size;
  } item;
  for (uint64_t at = 0; at < info->sh_size && get(cubin, info->sh_offset + at, item);) {
    uint32_t pair[2];
    if (item.format == kSized && (item.attribute == kFrameSize || item.attribute == kRegisterCount) &&
        get(cubin, info->sh_offset + at + sizeof item, pair)) {
      Elf64_Sym symbol;
      if (!get(cubin, symbols->sh_offset + pair[0] * sizeof symbol, symbol)) break;
      const auto kernel = kernels.find(name_at(cubin, sections[symbols->sh_link], symbol.st_name));
      if (kernel != kernels.end()) {
        (item.attribute == kFrameSize ? kernel->second.stack : kernel->second.registers) =
            static_cast<int>(pair[1]);
      }
    }
    at += sizeof item + (item.format == kSized ? item.size : 0);
  }
  return kernels;
}

}  // namespace upweave::cuda

#pragma once
// A partition of the groups of phases over blocks, for the schedules whose blocks keep their weights: each
// part's weights lie in the shared memory of its blocks for good.
#include <functional>
#include <string>
#include <vector>

#include "engine/cuda/schedule/schedule.h"

namespace upweave::cuda {

struct Part {
  std::vector<int> groups;                    // of phases that are stored together
  int blocks = 1;                             // that compute them
  std::vector<std::array<int, 2>> step_runs;  // runs of steps in the stream: first, count

  int steps() const;
};

// Gives groups of phases to `count` parts, the largest to the part that has least.
std::vector<Part> share_phases(const Convolution& conv, int count);
// Which part each step is of.
std::vector<int> part_of_steps(const Convolution& conv, const std::vector<const Part*>& parts);
// So many blocks for parts, in proportion to their work; none more than there are tiles. `stores`: outputs,
// not only what they are reduced to.
std::vector<int> share_blocks(const Convolution& conv, const std::vector<const Part*>& parts, int blocks,
                              int tiles, bool stores);
// Bytes of the weights of the part with most.
int resident_weights(const Convolution& conv, const std::vector<const Part*>& parts);

// The parts of a list of types that extend Part.
template <class P>
std::vector<const Part*> parts_of(const std::vector<P>& list) {
  std::vector<const Part*> parts;
  for (const P& p : list) parts.push_back(&p);
  return parts;
}
template <class P>
void set_blocks(std::vector<P>& list, const std::vector<int>& blocks) {
  for (size_t i = 0; i < list.size(); ++i) list[i].blocks = blocks[i];
}

// --- Text: of `partition`, the part that a block works for, what its number of something is, or of those
// before it together; and which part that is.
std::string by_part(const std::vector<int>& values);  // partition == 0 ? a : partition == 1 ? b : c
std::string before_part(std::vector<int> values);
std::string part_of_block(const std::vector<int>& blocks);
// Tables of the parts' runs of steps and groups of phases.
std::string part_tables(const std::string& g, const std::vector<const Part*>& parts);

// value(part) of each part.
template <class P, class F>
std::vector<int> each_part(const std::vector<P>& list, F value) {
  std::vector<int> values;
  for (const P& p : list) values.push_back(static_cast<int>(std::invoke(value, p)));
  return values;
}
inline size_t group_count(const Part& p) { return p.groups.size(); }  // and of lists of steps

}  // namespace upweave::cuda

#pragma once
#include <string>
#include <vector>

namespace upweave::cli {

// Rows of cells, columns aligned; the first row is the header.
void print_table(const std::vector<std::vector<std::string>>& rows);

std::string bytes_text(double bytes);   // "12.3 MiB"
std::string time_text(double seconds);  // "1.23 ms"

// What was printed has left the process; throws if it cannot.
void flush_output();

// One line on a terminal's stderr that says what is under way; nothing anywhere else.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void say(const std::string& what);
  void clear();

 private:
  bool terminal_;
};

}  // namespace upweave::cli

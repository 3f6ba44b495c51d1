// Runs a fuzz target without libFuzzer, which GCC does not have: edits of seeds, and of those edits that reach code
// which none reached before, for a number of seconds.
//
//   edgekit_fuzz_parsers [seconds [seed [file...]]]
//
// The files join the target's own seeds. What is being tried is written to fuzz_input.bin before a crash, or an input that
// takes a minute, ends the program, and `edgekit_fuzz_parsers 0 0 fuzz_input.bin` tries it again.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);
// Address and undefined behaviour sanitizers call what is set here before they end the program.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

// --- coverage ---

// How often the test's own thread went from one block of instrumented code to another, by a hash of both, since the
// last look. GCC's -fsanitize-coverage=trace-pc calls what counts it; without, nothing is ever new.
constexpr std::size_t kEdges = 1 << 16;
std::uint8_t passed[kEdges], known[kEdges];
std::size_t touched[kEdges], touched_count = 0;  // where `passed` is not 0
thread_local bool counts = false;
thread_local std::uintptr_t last_block = 0;

// A bit for 1, 2, 3, 4-7, 8-15, 16-31, 32-127 and more times.
std::uint8_t how_often(std::uint8_t count) {
  if (count <= 3) return static_cast<std::uint8_t>(count == 0 ? 0 : 1 << (count - 1));
  if (count < 16) return count < 8 ? 8 : 16;
  if (count < 128) return count < 32 ? 32 : 64;
  return 128;
}

// Whether the last input did something that none before it did.
bool found_new() {
  bool found = false;
  for (std::size_t i = 0; i < touched_count; ++i) {
    const std::size_t edge = touched[i];
    const std::uint8_t often = how_often(passed[edge]);
    found = found || (known[edge] & often) == 0;
    known[edge] |= often;
    passed[edge] = 0;
  }
  touched_count = 0;
  return found;
}

constexpr std::size_t kMostKept = 20000;  // inputs

// --- crashes ---

std::string current;
constexpr unsigned kMostSeconds = 60;  // for an input

void write_current() {
  std::ofstream("fuzz_input.bin", std::ios::binary) << current;
  std::fputs("the input is in fuzz_input.bin\n", stderr);
}

void on_signal(int signal) {
  write_current();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

const char *const kPieces[] = {
    "\"", "\\", "{", "}", "[", "]", ",", ":", "-", "0", "9", ".", "e5", "E-400", "\\u", "\\ud83d", "\\udc00", "\n", " ",
    "\xff", "\xc3", "\xc3\xa9", "\xed\xa0\x80", "\xf4\x90\x80\x80", "null", "true", "NaN", "Infinity", "[[[[[[[[",
    "{\"a\":", "18446744073709551616", "9223372036854775807", "9223372036854775808", "4294967296", "16384", "32768",
    "__pad__.1", "__metadata__", "edgekit.runs", "edgekit.format", "data_offsets", "dtype", "shape", "\"U8\"",
    "\"F64\"", "layer.0", "r.", "..", "/", "edgekit.json", "schema_version", "weights", "sha256", "size", "files",
};

const char *const kNumbers[] = {
    "0", "1", "2", "3", "7", "8", "16", "17", "63", "64", "65", "-1", "-2", "255", "65536", "2147483647", "4294967295",
    "4294967296", "1048576", "1073741824", "9223372036854775807", "-9223372036854775808", "0.5", "1e38", "1e308",
    "-0.0",
};

bool in_word(char letter) {
  return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         letter == '-' || letter == '+' || letter == '.' || letter == '_' || letter == '"';
}

// Where the word, number or string around `at` begins and ends: empty between them.
std::pair<std::size_t, std::size_t> word_at(const std::string &text, std::size_t at) {
  std::size_t begin = at, end = at;
  while (begin > 0 && in_word(text[begin - 1])) --begin;
  while (end < text.size() && in_word(text[end])) ++end;
  return {begin, end};
}

class Editor {
 public:
  explicit Editor(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void edit(std::string &text, const std::string &other) {
    const std::size_t at = below(text.size() + 1), length = below(std::min<std::size_t>(text.size() - at, 24) + 1);
    switch (below(10)) {
      case 0:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << below(8));
        break;
      case 4:
        text.replace(at, length, kPieces[below(std::size(kPieces))]);
        break;
      case 5: {
        const std::size_t from = below(other.size() + 1);
        text.replace(at, length, other.substr(from, below(64)));
        break;
      }
      case 6:
      case 7:
      case 8: {  // a word, number or string becomes another one: what is JSON stays JSON
        const auto [begin, end] = word_at(text, at);
        const auto [from, to] = word_at(other, below(other.size() + 1));
        const std::string number = kNumbers[below(std::size(kNumbers))];
        if (end > begin) text.replace(begin, end - begin, below(2) == 0 ? number : other.substr(from, to - from));
        break;
      }
      default:  // a digit: numbers decide most of what a file means
        for (std::size_t i = at; i < text.size(); ++i) {
          if (text[i] < '0' || text[i] > '9') continue;
          text[i] = static_cast<char>('0' + below(10));
          break;
        }
    }
  }

 private:
  std::mt19937_64 random_;
};

void try_input(const std::string &text) {
  current = text;
  // A copy without a byte to spare, so that reading past the end is seen.
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  last_block = 0;
  counts = true;
  ::alarm(kMostSeconds);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  ::alarm(0);
  counts = false;
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  if (!counts) return;
  const std::uintptr_t block = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  const std::size_t edge = (block ^ last_block >> 1) % kEdges;
  if (passed[edge] == 0) touched[touched_count++] = edge;
  if (passed[edge] < 255) ++passed[edge];
  last_block = block;
}

int main(int count, char **arguments) {
  const double seconds = count > 1 ? std::atof(arguments[1]) : 10;
  Editor editor(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device{}());
  std::vector<std::string> corpus = edgekit_testing::fuzz_seeds();
  for (int i = 3; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s: cannot open\n", arguments[i]);
      return 2;
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(write_current);
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGALRM}) std::signal(signal, on_signal);
  std::set_terminate([] { std::abort(); });  // an exception that is no Error

  for (const std::string &text : corpus) {
    try_input(text);
    found_new();
  }
  const auto start = std::chrono::steady_clock::now();
  const std::size_t first = corpus.size();
  std::uint64_t tried = corpus.size();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    std::string text = corpus[editor.below(corpus.size())];
    for (std::size_t edits = 1 + editor.below(4); edits > 0; --edits) {
      editor.edit(text, corpus[editor.below(corpus.size())]);
    }
    try_input(text);
    ++tried;
    // What does something new is edited further.
    if (found_new() && text.size() < 100'000 && corpus.size() < first + kMostKept) corpus.push_back(text);
  }
  const auto edges = std::count_if(std::begin(known), std::end(known), [](std::uint8_t bits) { return bits != 0; });
  std::printf("%llu inputs, no failure; %zu of them did something new, %lld edges of the code were passed\n",
              static_cast<unsigned long long>(tried), corpus.size() - first, static_cast<long long>(edges));
  return 0;
}

#include "flash_packed.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "error.h"
#include "json.h"
#include "printable.h"

namespace edgekit {
namespace {

std::uint64_t rows_of(const Tensor &tensor) {
  return tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(tensor.shape[0]);
}

std::uint64_t element_bytes(const Tensor &tensor) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
  return tensor.bytes / elements;
}

// Whether a value is a whole number from 0 to 2^63 - 1.
bool is_size(const Json &value) { return value.kind() == Json::Kind::integer && value.integer() >= 0; }

class PackedParser {
 public:
  PackedParser(const std::vector<FlashSpan> &stored, std::uint64_t data_start, const std::string &where)
      : data_start_(data_start), where_(where) {
    for (const FlashSpan &span : stored) stored_.emplace(span.tensor.name, &span);
  }

  Run parse_run(const Json &row) const {
    const auto is = [&](std::size_t i, Json::Kind kind) { return row.array()[i].kind() == kind; };
    if (row.kind() != Json::Kind::array || row.array().size() != 4 || !is(0, Json::Kind::string) ||
        !is(1, Json::Kind::array) || !is(2, Json::Kind::string) || !is(3, Json::Kind::array) ||
        row.array()[3].array().empty()) {
      malformed("a run must be [name, digests, prefix, tensors]");
    }
    Run run;
    run.name = row.array()[0].string();
    check_flash_name("run", run.name, where_);
    std::vector<FlashSpan> tensors;
    std::unordered_set<std::string> names;
    for (const Json &entry : row.array()[3].array()) {
      tensors.push_back(parse_tensor(run.name, entry, row.array()[2].string()));
      if (!names.insert(tensors.back().tensor.name).second) {
        malformed("run ", run.name, " has two tensors of one name");
      }
    }
    for (const FlashSpan &span : tensors) {
      if (run.segments.empty() || end_of(run.segments.back()) != data_start_ + span.begin) {
        FlashSegment segment;
        segment.offset = data_start_ + span.begin;
        segment.place = run.length + segment.offset % kRunAlignment;
        run.segments.push_back(segment);
      }
      FlashSegment &segment = run.segments.back();
      Tensor tensor = span.tensor;
      tensor.full_name = run.name + "." + tensor.name;
      tensor.offset = segment.place + segment.bytes;
      segment.bytes += tensor.bytes;
      run.length = (segment.place + segment.bytes + kRunAlignment - 1) / kRunAlignment * kRunAlignment;
      run.tensors.push_back(std::move(tensor));
    }
    const Json::Array &digests = row.array()[1].array();
    if (digests.size() != run.segments.size()) {
      malformed("run ", run.name, " has ", digests.size(), " digests, not one for each segment");
    }
    for (std::size_t i = 0; i < digests.size(); ++i) {
      if (digests[i].kind() != Json::Kind::string) malformed("run ", run.name, ": a digest is not a string");
      run.segments[i].xxh3 = parse_flash_digest(run.name, digests[i].string(), where_);
    }
    run.offset = run.segments[0].offset;
    run.xxh3 = run.segments[0].xxh3;
    return run;
  }

 private:
  static std::uint64_t end_of(const FlashSegment &segment) { return segment.offset + segment.bytes; }

  template <typename... Parts>
  [[noreturn]] void malformed(const Parts &...parts) const {
    fail(EK_MALFORMED_FILE, where_, ": ", parts...);
  }

  FlashSpan parse_tensor(const std::string &run, const Json &entry, const std::string &prefix) const {
    if (entry.kind() == Json::Kind::string) {
      const auto found = stored_.find(prefix + entry.string());
      if (found == stored_.end()) {
        malformed("run ", run, ": no tensor ", in_quotes(prefix + entry.string()), " is stored");
      }
      check_flash_name("tensor", entry.string(), where_);
      FlashSpan whole = *found->second;
      whole.tensor.name = entry.string();
      return whole;
    }
    if (entry.kind() != Json::Kind::array || entry.array().size() < 2 ||
        entry.array()[0].kind() != Json::Kind::string) {
      malformed("run ", run, ": a tensor must be a name, or [name, [stored name, first row, rows]...]");
    }
    check_flash_name("tensor", entry.array()[0].string(), where_);
    FlashSpan joined = parse_slice(run, entry.array()[1]);
    for (std::size_t i = 2; i < entry.array().size(); ++i) {
      const FlashSpan next = parse_slice(run, entry.array()[i]);
      Tensor &own = joined.tensor;
      if (own.dtype != next.tensor.dtype || next.begin != joined.end ||
          !std::equal(own.shape.begin() + 1, own.shape.end(), next.tensor.shape.begin() + 1, next.tensor.shape.end())) {
        malformed("run ", run, ": slices of ", entry.array()[0].string(), " do not continue each other");
      }
      joined.end = next.end;
      own.bytes += next.tensor.bytes;
      own.shape[0] += next.tensor.shape[0];
    }
    joined.tensor.name = entry.array()[0].string();
    return joined;
  }

  FlashSpan parse_slice(const std::string &run, const Json &part) const {
    const auto found = part.kind() == Json::Kind::array && part.array().size() == 3 &&
                               part.array()[0].kind() == Json::Kind::string
                           ? stored_.find(part.array()[0].string())
                           : stored_.end();
    if (found == stored_.end()) {
      malformed("run ", run, ": a slice must be [stored name, first row, rows] of a tensor that is stored");
    }
    const FlashSpan &whole = *found->second;
    const std::uint64_t have = rows_of(whole.tensor);
    const Json &first = part.array()[1], &rows = part.array()[2];
    if (!is_size(first) || !is_size(rows) || rows.integer() == 0 ||
        static_cast<std::uint64_t>(first.integer()) + static_cast<std::uint64_t>(rows.integer()) > have) {
      malformed("run ", run, ": a slice is not among the ", have, " rows of ", whole.tensor.name);
    }
    const std::uint64_t row_bytes = whole.tensor.bytes / have;
    FlashSpan slice;
    slice.tensor.dtype = whole.tensor.dtype;
    slice.tensor.shape = whole.tensor.shape;
    if (slice.tensor.shape.empty()) slice.tensor.shape.push_back(1);
    slice.tensor.shape[0] = rows.integer();
    slice.tensor.bytes = static_cast<std::uint64_t>(rows.integer()) * row_bytes;
    slice.begin = whole.begin + static_cast<std::uint64_t>(first.integer()) * row_bytes;
    slice.end = slice.begin + slice.tensor.bytes;
    return slice;
  }

  std::unordered_map<std::string_view, const FlashSpan *> stored_;
  std::uint64_t data_start_;
  const std::string &where_;
};

// Every byte of the data belongs to one run: what no digest covers would be used unchecked by others.
void check_cover(const FlashLayout &layout, std::uint64_t data_start, const std::string &where) {
  std::vector<std::pair<const FlashSegment *, const Run *>> segments;
  for (const Run &run : layout.runs) {
    for (const FlashSegment &segment : run.segments) segments.emplace_back(&segment, &run);
  }
  std::stable_sort(segments.begin(), segments.end(),
                   [](const auto &a, const auto &b) { return a.first->offset < b.first->offset; });
  std::uint64_t position = data_start;
  for (const auto &[segment, run] : segments) {
    if (segment->offset != position) {
      fail(EK_MALFORMED_FILE, where, ": run ", run->name, ": a segment starts at ", segment->offset, ", expected ",
           position, " (the end of what comes before it)");
    }
    position = segment->offset + segment->bytes;
  }
  if (position != layout.size) {
    fail(EK_MALFORMED_FILE, where, ": no run covers bytes ", position, "..", layout.size);
  }
}

}  // namespace

FlashLayout parse_packed(const std::string &runs_text, const std::vector<FlashSpan> &stored, std::uint64_t data_start,
                         std::uint64_t file_size, const std::string &where) {
  std::uint64_t position = 0;
  for (const FlashSpan &span : stored) {
    if (span.begin != position) {
      fail(EK_MALFORMED_FILE, where, ": tensor ", span.tensor.name, " starts at byte ", span.begin, ", expected ",
           position);
    }
    if (span.begin % element_bytes(span.tensor) != 0) {
      fail(EK_MALFORMED_FILE, where, ": tensor ", span.tensor.name, " is not aligned to its elements at byte ",
           span.begin);
    }
    position = span.end;
  }
  FlashLayout layout;
  layout.size = data_start + position;
  if (file_size < layout.size) {
    fail(EK_TRUNCATED_FILE, where, ": has ", file_size, " of ", layout.size, " bytes; export or copy it again");
  }
  if (file_size > layout.size) {
    fail(EK_MALFORMED_FILE, where, ": ", file_size - layout.size,
         " bytes follow the last tensor; export or copy it again");
  }
  const Json rows = Json::parse(runs_text, where + ": edgekit.runs");
  if (rows.kind() != Json::Kind::array || rows.array().empty()) {
    fail(EK_MALFORMED_FILE, where, ": edgekit.runs must be a non-empty list");
  }
  const PackedParser parser(stored, data_start, where);
  for (const Json &row : rows.array()) {
    Run run = parser.parse_run(row);
    if (!layout.index.emplace(run.name, layout.runs.size()).second) {
      fail(EK_MALFORMED_FILE, where, ": run ", run.name, " is listed twice");
    }
    layout.runs.push_back(std::move(run));
  }
  check_cover(layout, data_start, where);
  return layout;
}

void check_flash_name(const char *kind, const std::string &name, const std::string &where) {
  if (name.empty() || !is_printable(name)) {  // it will be part of messages
    fail(EK_MALFORMED_FILE, where, ": the ", kind, " name ", in_quotes(name), " is empty or cannot be printed");
  }
}

std::uint64_t parse_flash_digest(const std::string &run, const std::string &text, const std::string &where) {
  std::uint64_t value = 0;
  if (!parse_hex64(text, value)) {
    fail(EK_MALFORMED_FILE, where, ": run ", run, ": ", in_quotes(text, 40), " is not an xxh3-64 digest");
  }
  return value;
}

}  // namespace edgekit

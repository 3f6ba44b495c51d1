// The functions of edgekit.h about sequences and passes of several segments.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "abi_guard.h"
#include "abi_head.h"
#include "abi_session.h"
#include "error.h"
#include "session/pass.h"
#include "session/sequence.h"

namespace edgekit {
namespace {

template <typename Make>
void give(ek_session *session, ek_sequence **made, const Make &make) {
  if (made != nullptr) *made = nullptr;
  const Entry own(session);
  if (made == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the sequence");
  auto handle = std::make_unique<ek_sequence>();
  handle->session = session;
  handle->own = make(*own);
  *made = handle.release();
}

// A segment of a caller, with what its request points at.
struct Given {
  std::optional<AskedHead> head;
  PassSegment segment;
};

void take(ek_session *session, const ek_pass_segment &from, Given &to) {
  const ek_pass_segment given = read_struct<ek_pass_segment>(&from, EK_PASS_SEGMENT_INIT, "ek_pass_segment");
  to.segment.sequence = &sequence_of(session, given.sequence);
  to.segment.ids = given.ids;
  to.segment.count = given.count;
  to.segment.positions = given.positions;
  to.segment.causal = given.causal != 0;
  if (given.block != 0) to.segment.block = given.block;
  to.segment.soft = given.soft;
  to.segment.adapter = given.adapter;
  if (given.keep_at != EK_KEEP_NOTHING) to.segment.keep_at = given.keep_at;
  to.segment.keep_count = given.keep_count;
  if (given.seen == nullptr) {
    if (given.seen_count != 0) fail(EK_INVALID_ARGUMENT, "seen_count is ", given.seen_count, ", but seen is null");
  } else {
    if (given.seen_count < 0 || given.seen_count > kMostSequences) {
      fail(EK_INVALID_ARGUMENT, "seen_count is ", given.seen_count, "; it must be 0..", kMostSequences);
    }
    to.segment.seen.emplace();
    for (std::int64_t i = 0; i < given.seen_count; ++i) {
      to.segment.seen->push_back({given.seen[i].segment, given.seen[i].first, given.seen[i].count});
    }
  }
  if (given.request == nullptr) {
    if (given.output != nullptr) fail(EK_INVALID_ARGUMENT, "a segment has an output, but no request");
    return;
  }
  to.head = asked_head(given.request, given.output);
  to.segment.request = &to.head->request;
}

}  // namespace
}  // namespace edgekit

using namespace edgekit;

ek_status ek_sequence_open(ek_session *session, ek_sequence **sequence) noexcept {
  return guarded([&] { give(session, sequence, [](Session &own) { return own.open_sequence(); }); });
}

ek_status ek_sequence_copy(ek_session *session, ek_sequence *original, ek_sequence **copy) noexcept {
  return guarded([&] {
    give(session, copy, [&](Session &own) { return own.copy_sequence(sequence_of(session, original)); });
  });
}

void ek_sequence_close(ek_sequence *sequence) noexcept {
  // Of a parent's session a child of fork() has no part: see ek_session_close.
  if (sequence != nullptr && sequence->session->process.here()) close(*sequence);
}

ek_status ek_sequence_prefill(ek_session *session, ek_sequence *sequence, const int64_t *ids, int64_t count) noexcept {
  return guarded([&] {
    const Entry own(session);
    sequence_of(session, sequence).encode_behind(ids, count);
  });
}

ek_status ek_sequence_check_prefill(ek_session *session, ek_sequence *sequence, const int64_t *ids,
                                    int64_t count) noexcept {
  return guarded([&] {
    const Entry own(session);
    own->check_prefill(sequence_of(session, sequence), ids, count);
  });
}

ek_status ek_sequence_crop(ek_session *session, ek_sequence *sequence, int64_t length) noexcept {
  return guarded([&] {
    const Entry own(session);
    sequence_of(session, sequence).crop(length);
  });
}

ek_status ek_sequence_keep(ek_session *session, ek_sequence *sequence, const int64_t *ids, int64_t count) noexcept {
  return guarded([&] {
    const Entry own(session);
    Sequence &text = sequence_of(session, sequence);
    if (count != 0) own->check_text(text, ids, count);
    text.keep({ids, ids + count});
  });
}

ek_status ek_sequence_get_info(ek_session *session, ek_sequence *sequence, ek_sequence_info *info) noexcept {
  return guarded([&] {
    required(session);
    const Sequence &text = sequence_of(session, sequence);
    ek_sequence_info made{};
    made.prefix_length = text.prefix_length();
    made.uncached_length = static_cast<std::int64_t>(text.uncached().size());
    made.last_rows = text.last_rows();
    made.last_pass = text.last_pass();
    made.text = text.text();
    write_struct(info, made, "ek_sequence_info");
  });
}

ek_status ek_sequence_get_text(ek_session *session, ek_sequence *sequence, int64_t *ids, int64_t id_capacity,
                               int64_t *piece_lengths, int64_t piece_capacity, int64_t *pieces) noexcept {
  return guarded([&] {
    required(session);
    const Sequence &own = sequence_of(session, sequence);
    // A canvas that a model without a prefix keeps is no text.
    const std::int64_t length = session->session.model().causal_prefix ? own.prefix_length() : 0;
    const KeptText &text = own.kept_text();
    if (pieces == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the number of pieces");
    text.require(length);
    const std::vector<std::int64_t> all = text.ids(length), lengths = text.pieces(length);
    *pieces = static_cast<std::int64_t>(lengths.size());
    if (id_capacity < length || (piece_lengths != nullptr && piece_capacity < *pieces)) {
      fail(EK_BUFFER_TOO_SMALL, "the text has ", length, " tokens in ", *pieces, " pieces, the arrays room for ", id_capacity,
           " and ", piece_capacity);
    }
    if (length > 0 && ids == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the token ids");
    std::copy(all.begin(), all.end(), ids);
    if (piece_lengths != nullptr) std::copy(lengths.begin(), lengths.end(), piece_lengths);
  });
}

ek_status ek_session_pass(ek_session *session, const ek_pass_segment *segments, int64_t count) noexcept {
  return guarded([&] {
    const Entry own(session);
    if (count < 1 || count > kMostSequences) {
      fail(EK_INVALID_ARGUMENT, "a pass of ", count, " segments; it must have 1..", kMostSequences);
    }
    if (segments == nullptr) fail(EK_INVALID_ARGUMENT, "no segments are given");
    std::vector<Given> given(static_cast<std::size_t>(count));
    std::vector<PassSegment> wanted;
    const std::uint32_t size = segments[0].struct_size;
    for (std::size_t i = 0; i < given.size(); ++i) {
      // Structs of the caller's size, one behind the other.
      const auto *at = reinterpret_cast<const unsigned char *>(segments) + i * size;
      const auto &segment = *reinterpret_cast<const ek_pass_segment *>(at);
      if (segment.struct_size != size) fail(EK_INVALID_ARGUMENT, "segments of a pass have different struct_size");
      about_segment(i, [&] { take(session, segment, given[i]); });
      wanted.push_back(given[i].segment);
    }
    std::vector<HeadResult> results = own->pass(wanted);
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i].head) deliver(results[i], given[i].head->output);
    }
  });
}

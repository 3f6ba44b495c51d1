// Kept rows of sequences against plain lists of what was written.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "error.h"
#include "session/kept_rows.h"
#include "unit.h"

namespace edgekit {
namespace {

constexpr std::int64_t kChunk = 5;

std::vector<KvGeometry> layers() { return {{2, 3, 0}, {1, 4, 6}, {2, 2, 1}}; }

// Of the chunks of the layers with a window: they are as large as planned, and stay.
const std::uint64_t kWindows = KeptRows::bytes({layers()[1], layers()[2]}, 1000, kChunk);

// Memory that is reached by no address of it; a copy may be told to fail.
class OwnMemory final : public EngineMemory {
 public:
  bool session() const override { return false; }

  std::unique_ptr<EngineBlock> allocate(std::int64_t floats) override {
    EK_CHECK(floats > 0);
    return std::make_unique<Block>(*this, static_cast<std::size_t>(floats));
  }

  void copy(const std::vector<FloatCopy> &copies) override {
    for (const FloatCopy &each : copies) {
      for (std::int64_t i = 0; i < each.blocks; ++i) {
        float *to = real(each.to + i * each.to_stride);
        const float *from = real(const_cast<float *>(each.from) + i * each.from_stride);
        EK_CHECK(to + each.count <= from || from + each.count <= to);
        if (fails_at == 0 || --fails_at != 0) {
          std::memcpy(to, from, sizeof(float) * static_cast<std::size_t>(each.count));
        } else {
          fail(EK_ENGINE_FAILED, "a copy that fails");
        }
      }
    }
  }

  void finish() override {}

  static float *real(float *far) { return reinterpret_cast<float *>(reinterpret_cast<std::uintptr_t>(far) - kFar); }

  int blocks = 0, fails_at = 0;  // the nth block from now on; 0: none

 private:
  static constexpr std::uintptr_t kFar = std::uintptr_t{1} << 52;

  class Block final : public EngineBlock {
   public:
    Block(OwnMemory &own, std::size_t floats) : Block(own, std::make_unique<float[]>(floats)) {}
    Block(OwnMemory &own, std::unique_ptr<float[]> memory)
        : EngineBlock(reinterpret_cast<void *>(reinterpret_cast<std::uintptr_t>(memory.get()) + kFar)),
          own_(own),
          memory_(std::move(memory)) {
      ++own_.blocks;
    }
    ~Block() override { --own_.blocks; }

   private:
    OwnMemory &own_;
    const std::unique_ptr<float[]> memory_;
  };
};

OwnMemory own_memory;

// Where floats are that a KvMemory holds.
float *reached(const KvMemory &own, float *data) { return own.memory->session() ? data : OwnMemory::real(data); }

std::shared_ptr<KvMemory> memory(std::int64_t positions, std::uint64_t limit = UINT64_MAX) {
  auto made = std::make_shared<KvMemory>();
  made->layers = layers();
  made->positions = positions;
  made->chunk = kChunk;
  made->limit = limit;
  return made;
}

// A sequence, and a number for every position that it keeps.
struct Text {
  explicit Text(const std::shared_ptr<KvMemory> &own) : memory(own), rows(own) {}
  Text(const Text &) = default;

  std::shared_ptr<KvMemory> memory;
  KeptRows rows;
  std::vector<float> tags;
  std::int64_t most = 0;  // that it has kept
};

float value(float tag, std::int64_t head, std::int64_t i) { return tag * 100 + static_cast<float>(head * 10 + i); }

// `keep`: the first of them that are kept; none given: all.
void write(Text &text, std::int64_t at, std::int64_t count, float &tag, bool commit = true, std::int64_t keep = 0) {
  std::vector<float> tags;
  for (std::int64_t t = 0; t < count; ++t) tags.push_back(++tag);
  for (std::size_t layer = 0; layer < layers().size(); ++layer) {
    KeyPiece to = text.rows.prepare(layer, at, count);
    for (Strided *side : {&to.keys, &to.values}) side->data = reached(*text.memory, side->data);
    EK_CHECK(to.keys.shape[2] == count && to.values.shape[2] == count);
    for (std::int64_t head = 0; head < to.keys.shape[1]; ++head) {
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t i = 0; i < to.keys.shape[3]; ++i) {
          const float wanted = value(tags[static_cast<std::size_t>(t)], head, i);
          to.keys.data[head * to.keys.stride[1] + t * to.keys.stride[2] + i] = wanted;
          to.values.data[head * to.values.stride[1] + t * to.values.stride[2] + i] = -wanted;
        }
      }
    }
  }
  if (!commit) return text.rows.abandon();
  if (keep == 0) keep = count;
  text.rows.commit(keep);
  tags.resize(static_cast<std::size_t>(keep));
  text.tags.resize(std::max(text.tags.size(), static_cast<std::size_t>(at) + tags.size()));
  std::copy(tags.begin(), tags.end(), text.tags.begin() + at);
  text.most = std::max(text.most, text.rows.length());
}

void check(const Text &text) {
  EK_CHECK(text.rows.length() == static_cast<std::int64_t>(text.tags.size()));
  for (std::size_t layer = 0; layer < layers().size(); ++layer) {
    const std::int64_t window = layers()[layer].window, length = text.rows.length();
    const std::int64_t first = text.rows.first(layer);
    EK_CHECK(first <= (window == 0 ? 0 : std::max<std::int64_t>(0, length - (window - 1))));
    std::vector<KeyPiece> pieces;
    text.rows.append_pieces(layer, first, length, pieces);
    std::int64_t at = first;
    for (KeyPiece &piece : pieces) {
      for (Strided *side : {&piece.keys, &piece.values}) side->data = reached(*text.memory, side->data);
      for (std::int64_t t = 0; t < piece.keys.shape[2]; ++t, ++at) {
        const float tag = text.tags[static_cast<std::size_t>(at)];
        for (std::int64_t head = 0; head < piece.keys.shape[1]; ++head) {
          const std::int64_t i = piece.keys.shape[3] - 1;
          const float wanted = value(tag, head, i);
          EK_CHECK(piece.keys.data[head * piece.keys.stride[1] + t * piece.keys.stride[2] + i] == wanted);
          EK_CHECK(piece.values.data[head * piece.values.stride[1] + t * piece.values.stride[2] + i] == -wanted);
        }
      }
    }
    EK_CHECK(at == length);
  }
}

// Whether what is kept can go on at `at`, and not where a layer with a window lacks rows.
bool goes_on_at(const Text &text, std::int64_t at) {
  try {
    text.rows.check(at);
    return true;
  } catch (const Error &error) {
    EK_CHECK(error.status() == EK_INVALID_STATE);
    return false;
  }
}

EK_TEST(kept_rows_are_those_that_were_written) {
  for (int seed = 0; seed < 80; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](std::int64_t count) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
    };
    const std::shared_ptr<KvMemory> own = memory(std::vector<std::int64_t>{0, 4, 60}[static_cast<std::size_t>(seed % 3)]);
    if (seed % 2 != 0) own->memory = &own_memory;
    std::vector<std::unique_ptr<Text>> texts;
    texts.push_back(std::make_unique<Text>(own));
    float tag = 0;
    for (int step = 0; step < 120; ++step) {
      Text &text = *texts[static_cast<std::size_t>(below(static_cast<std::int64_t>(texts.size())))];
      const std::int64_t length = text.rows.length(), count = 1 + below(kChunk);
      switch (below(9)) {
        case 0:
          if (texts.size() < 4) texts.push_back(std::make_unique<Text>(text));
          break;
        case 1:
          if (texts.size() > 1) texts.erase(texts.begin() + below(static_cast<std::int64_t>(texts.size())));
          break;
        case 2: {
          const std::int64_t to = std::max<std::int64_t>(0, length - below(2 * kChunk));
          if (to < text.most - kChunk && !goes_on_at(text, to)) break;
          text.rows.crop(to);  // the last chunk can always be taken back
          text.tags.resize(static_cast<std::size_t>(to));
          break;
        }
        case 3: {
          const std::int64_t at = std::max<std::int64_t>(0, length - below(2 * kChunk));
          if (goes_on_at(text, at)) write(text, at, count, tag, true, below(count));
          break;
        }
        case 4:
          write(text, length, count, tag, false);
          break;
        case 5:
          if (below(10) == 0) {
            text.rows.clear();
            text.tags.clear();
          }
          break;
        case 6:
          if (below(4) == 0) {
            own->pack();
            EK_CHECK(own->held <= own->kept() + texts.size() * kWindows);
          } else {
            own->pack_if_scattered();
          }
          break;
        default:
          write(text, length, count, tag, true, below(count));
      }
      for (const auto &each : texts) check(*each);
    }
    texts.clear();
    EK_CHECK(own->held == 0 && own_memory.blocks == 0);
  }
}

// A copy that fails, at any place, leaves the old text or none.
EK_TEST(kept_rows_that_are_half_moved_are_none) {
  int lost = 0;
  for (int nth = 1; nth < 60; ++nth) {
    for (const bool replaces : {false, true}) {
      const std::shared_ptr<KvMemory> own = memory(60);
      own->memory = &own_memory;
      Text text(own);
      float tag = 0;
      while (text.rows.length() < 13) write(text, text.rows.length(), 1, tag);
      const std::vector<float> before = text.tags;
      own_memory.fails_at = nth;
      try {
        // Rows of windows move where one comes more, others where they replace some.
        write(text, replaces ? 11 : 13, replaces ? 2 : kChunk, tag);
      } catch (const Error &error) {
        EK_CHECK(error.status() == EK_ENGINE_FAILED);
        text.rows.abandon();
        if (text.rows.length() == 0) text.tags.clear();
        lost += text.rows.length() == 0;
        EK_CHECK(text.tags.empty() || text.tags == before);
      }
      own_memory.fails_at = 0;
      check(text);
      write(text, text.rows.length(), 3, tag);
      check(text);
    }
  }
  EK_CHECK(lost > 0 && own_memory.blocks == 0);
}

EK_TEST(kept_rows_of_copies_are_shared) {
  const std::uint64_t each = KeptRows::bytes(layers(), 40, kChunk);
  EK_CHECK(KeptRows::bytes(layers(), 100, kChunk) == 8u * (6 * 100 + 4 * 15 + 4 * 10));
  const std::shared_ptr<KvMemory> own = memory(40, 3 * each);
  Text text(own);
  float tag = 0;
  for (int i = 0; i < 6; ++i) write(text, text.rows.length(), kChunk, tag);
  const std::uint64_t one = own->held;
  Text other(text), third(text);
  EK_CHECK(own->held == one);
  for (int i = 0; i < 2; ++i) {
    for (Text *going_on : {&text, &other, &third}) {
      write(*going_on, going_on->rows.length(), kChunk, tag);
      check(text);
      check(other);
      check(third);
    }
  }
  EK_CHECK(own->held <= 3 * each);
}

// Texts of the planned length, as many as were planned for, have room whatever came and went before.
EK_TEST(kept_rows_that_were_given_up_make_room) {
  int packed = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t count) { return static_cast<std::int64_t>(random() % count); };
    const std::int64_t positions = 8 + below(60);
    const std::size_t most = 1 + static_cast<std::size_t>(below(4));
    const std::shared_ptr<KvMemory> own = memory(positions, most * KeptRows::bytes(layers(), positions, kChunk));
    std::vector<std::unique_ptr<Text>> texts;
    texts.push_back(std::make_unique<Text>(own));
    float tag = 0;
    const auto add = [&](Text &text, std::int64_t count) {
      try {
        write(text, text.rows.length(), count, tag);
      } catch (const KvFull &) {
        text.rows.abandon();
        own->pack();
        ++packed;
        write(text, text.rows.length(), count, tag);
      }
    };
    for (int step = 0; step < 200; ++step) {
      Text &text = *texts[static_cast<std::size_t>(below(texts.size()))];
      const std::int64_t does = below(6), length = text.rows.length(), left = positions - length;
      if (does == 0 && texts.size() < most) {
        texts.push_back(std::make_unique<Text>(text));
      } else if (does == 1 && texts.size() > 1) {
        texts.erase(texts.begin() + below(texts.size()));
      } else if (does == 2) {
        const std::int64_t to = below(3) == 0 ? 0 : std::max<std::int64_t>(0, length - 1 - below(2 * kChunk));
        if (!goes_on_at(text, to)) continue;
        text.rows.crop(to);
        text.tags.resize(static_cast<std::size_t>(to));
      } else if (does == 3) {  // as far as it may go
        while (text.rows.length() < positions) add(text, std::min<std::int64_t>(kChunk, positions - text.rows.length()));
      } else if (left > 0) {
        add(text, std::min<std::int64_t>(left, 1 + below(kChunk)));
      }
      for (const auto &each : texts) check(*each);
    }
  }
  EK_CHECK(packed > 0);
}

// A copy that goes on and is closed, many times, takes no more than a few texts do.
EK_TEST(kept_rows_of_branches_do_not_pile_up) {
  const std::shared_ptr<KvMemory> own = memory(0);
  own->layers = {{16, 64, 0}, {16, 64, 7}};
  KeptRows text(own);
  const auto add = [&](KeptRows &to, std::int64_t count) {
    for (std::size_t layer = 0; layer < own->layers.size(); ++layer) to.prepare(layer, to.length(), count);
    to.commit();
  };
  std::uint64_t most = 0;
  for (int i = 0; i < 200; ++i) {
    KeptRows branch(text);
    add(branch, 100);
    add(text, 1);
    own->pack_if_scattered();
    most = std::max(most, own->held);
    EK_CHECK(text.pieces(0).size() <= 32);
  }
  EK_CHECK(text.length() == 200 && most < 4 * KvChunk::bytes(own->layers[0], 300) + (std::uint64_t{2} << 20));
}

// Rows that are not kept of what was written give their memory to the next.
EK_TEST(kept_rows_take_no_more_than_they_are) {
  const std::shared_ptr<KvMemory> own = memory(40);
  Text text(own);
  KeptRows copy(text.rows);
  float tag = 0;
  for (std::int64_t length = 0; length < 40; ++length) {
    write(text, length, 40 - length, tag, true, 1);
    if (length == 0) check(text);
  }
  check(text);
  EK_CHECK(text.rows.pieces(0).size() == 1 && own->held <= 2 * KeptRows::bytes(own->layers, 40, kChunk));
}

// Where memory is short the old rows stay.
EK_TEST(kept_rows_stay_where_packing_fails) {
  for (int nth = 1; nth < 12; ++nth) {
    const std::shared_ptr<KvMemory> own = memory(60);
    own->memory = &own_memory;
    Text text(own);
    float tag = 0;
    while (text.rows.length() < 20) write(text, text.rows.length(), kChunk, tag);
    Text other(text);
    write(other, 20, 3, tag);
    write(text, 20, 2, tag);
    text.rows.crop(18);
    text.tags.resize(18);
    own_memory.fails_at = nth;
    try {
      own->pack();
    } catch (const Error &error) {
      EK_CHECK(error.status() == EK_ENGINE_FAILED);
    }
    own_memory.fails_at = 0;
    check(text);
    check(other);
    own->pack();
    check(text);
    check(other);
    EK_CHECK(own->held <= own->kept() + 2 * kWindows);
  }
}

EK_TEST(kept_rows_stay_within_their_limit) {
  const std::shared_ptr<KvMemory> own = memory(10, KeptRows::bytes(layers(), 10, kChunk));
  Text text(own);
  float tag = 0;
  write(text, 0, 5, tag);
  write(text, 5, 5, tag);
  ek_status status = EK_OK;
  try {
    text.rows.prepare(0, 10, 5);
  } catch (const Error &error) {
    status = error.status();
  }
  EK_CHECK(status == EK_BUDGET_EXCEEDED);
  text.rows.abandon();
  check(text);
}

}  // namespace
}  // namespace edgekit

// Memory of exactly the size that a layout promises, so that a sanitizer sees every step beyond.
#ifndef EDGEKIT_TESTING_ALIGNED_ARRAY_H
#define EDGEKIT_TESTING_ALIGNED_ARRAY_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace edgekit_testing {

// 64-byte aligned memory of exactly `count` elements.
template <typename T>
class Array {
 public:
  explicit Array(std::int64_t count, T value = T{})
      : count_(count), data_(static_cast<T *>(::operator new(bytes(), kAlignment))) {
    std::fill(data(), data() + count, value);
  }
  T *data() { return data_.get(); }
  const T *data() const { return data_.get(); }
  std::int64_t size() const { return count_; }
  T &operator[](std::int64_t i) { return data_.get()[i]; }
  bool operator==(const Array &other) const {
    return count_ == other.count_ && std::memcmp(data(), other.data(), bytes()) == 0;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T *data) const { ::operator delete(data, kAlignment); }
  };

  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }

  std::int64_t count_;
  std::unique_ptr<T, Free> data_;
};

}  // namespace edgekit_testing

#endif  // EDGEKIT_TESTING_ALIGNED_ARRAY_H

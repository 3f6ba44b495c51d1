#include "sampling/cached_canvas.h"

namespace edgekit {

void CachedCanvas::show(const Ids &ids, const Flags &open, const Flags &fresh) {
  ids_ = ids;
  stood_in_.resize(ids.size(), kNever);
  kept_in_.resize(ids.size(), kNever);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (open[i]) open_token_ = ids[i];
    if (!open[i]) stood_in_[i] = std::min(stood_in_[i], passes_);
    if (!fresh[i]) kept_in_[i] = std::min(kept_in_[i], passes_);
  }
}

AskSegment CachedCanvas::segment(std::int64_t pass) const {
  AskSegment made;
  made.at = kept(pass);
  for (const bool kept : {true, false}) {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (kept ? kept_in_[i] != pass : kept_in_[i] <= pass) continue;
      made.ids.push_back(stood_in_[i] <= pass ? ids_[i] : open_token_);
      made.positions.push_back(static_cast<std::int64_t>(i));
    }
    if (kept) made.keep_count = static_cast<std::int64_t>(made.ids.size());
  }
  made.keep = made.keep_count > 0;
  return made;
}

}  // namespace edgekit

package io.edgekit.sample

/** How much memory the process may take: weights that do not fit stream from the bundle. */
enum class Budget(val bytes: Long, val title: Int) {
  NONE(0, R.string.budget_none),
  GB_1(1_000_000_000, R.string.budget_1),
  GB_2(2_000_000_000, R.string.budget_2),
  GB_4(4_000_000_000, R.string.budget_4),
  GB_8(8_000_000_000, R.string.budget_8),
}

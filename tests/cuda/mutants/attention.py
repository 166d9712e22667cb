"""Attention."""

from __future__ import annotations

from .target import Target

ATTENTION = "test_attention_kernels.py"

TARGETS = (
    Target(
        "csrc/cuda/attention/forward.cu",
        (ATTENTION, "-k", "forward or order or hidden"),
        {
            "a row too many": ("row >= row1_) continue", "row > row1_) continue"),
            "keys beyond the range": ("key0 < end;", "key0 <= end;"),
            "tiles in the middle of a group": ("begin / Math::kColumns * Math::kColumns", "begin"),
            "inner too early": ("key0 >= inner_begin &&", ""),
            "decay of nothing": ("out_[i][m] *= decay;", ";"),
            "sums forget": ("sum_[i] = sum_[i] * decay + sum", "sum_[i] = sum_[i] + sum"),
            "chunk's stats": ("item_.chunk > 0 ||", "item_.chunk == 0 ||"),
            "never careful": ("careful < 2", "careful < 1"),
            "nothing cleared": (
                "clear_heads(output, p.batch",
                "if (false) clear_heads(output, p.batch",
            ),
        },
        equivalent={
            "keys beyond the range": "a tile of which no row sees a key adds 0",
            "chunk's stats": "equal in all chunks of the tests' cases",
        },
    ),
    Target(
        "csrc/cuda/attention/backward.cu",
        (ATTENTION, "-k", "gradients or order or hidden or one_key"),
        {
            "full tiles only": ("walk_.row0 + Math::kRows <= s_.queries &&", ""),
            "peaks counted twice": ("w == Sum(0) || peak ?", "w == Sum(0) ?"),
            "no peaks": ("heavy && w > Sum(0.5)", "heavy && w > Sum(2)"),
            "another row's peak": (
                "d = key == known.peak.key ?",
                "d = key == known.peak.key + 1 ?",
            ),
            "without scale": ("d * Sum(p_.scale) * slope;", "d * slope;"),
            "dropout of dP": ("ds[i][0] * factor)", "ds[i][0])"),
            "no rest": ("rest_[i] += heavy ? d", "rest_[i] += peak ? d"),
            "the first row's peak": ("turn(peaks_, mine);", ""),
            "scores do not go round": ("turn(x[i], score);", ""),
            "keys alone are stored": ("values ? call_.g.value : call_.g.key", "call_.g.key"),
            "one head of a group": ("first_head() + heads_of_group(p_)", "first_head() + 1"),
            "queries beyond the range": ("s_.queries_of(last).end", "s_.queries_of(last).end - 1"),
        },
        equivalent={
            "delete __syncthreads 4": "it only keeps addresses from being computed ahead",
        },
    ),
    Target(
        "csrc/cuda/attention/few.cu",
        (ATTENTION, "test_half_cache.py", "-k", "forward or weights or none or hidden_keys"),
        {
            "parts overlap": ("item_.tile * int(call_.part_keys)", "item_.tile * kTile"),
            "a row too many": ("row < rows() && d", "row <= rows() && d"),
            "hidden values": ("if (call_.masked && weight == Sum(0)) continue;", ""),
            "parts of one maximum": ("power_of_2((stats.maximum - top) * to_base_2)", "Sum(1)"),
            "shares of one thread": ("j += sharers()", "j += 1"),
            "wide loads of odd rows": ("if (wide && count >= kRun)", "if (count >= kRun)"),
            "columns beyond the features": ("k < count ? widened", "k <= count ? widened"),
        },
    ),
    Target(
        "csrc/cuda/attention/cache.cu",
        ("test_half_cache.py", "-k", "layouts"),
        {
            "an element too many": ("at >= size) return", "at > size) return"),
            "rows side by side": ("(line - all * rows) * from.row", "(line - all * rows) * width"),
            "the first head": ("(all - batch * heads) * from.head", "0"),
        },
    ),
    Target(
        "csrc/cuda/attention/cache.h",
        ("test_half_cache.py", "-k", "layouts or forward"),
        {
            "broadcast heads apart": ("from.head ? row_ : 0", "row_"),
            "batches of one head": ("from.batch ? heads_ * row_ : 0", "from.batch ? row_ : 0"),
        },
        compiled="csrc/cuda/attention/forward.cu",
    ),
    Target(
        "csrc/cuda/attention/weights.cu",
        (ATTENTION, "-k", "weights"),
        {
            "a key too many": ("key < s.keys)", "key <= s.keys)"),
            "a row too many": ("row >= row1) continue", "row > row1) continue"),
            "first tile only": ("key0 < end;", "key0 < begin + 1;"),
        },
    ),
    Target(
        "csrc/cuda/attention/bias_gradient.cu",
        (ATTENTION, "-k", "gradients and bias"),
        {
            "first head only": ("head < range.head1", "head < range.head0 + 1"),
            "one warp's sums": ("other < Math::kWarps", "other < 1"),
            "one lane's sums": ("step >= 4", "step >= 8"),
            "tiles of other rows": ("row0 - s.query0,", "row0,"),
            "peaks as the rest": ("key == peak.key ? peak.ds :", ""),
        },
        equivalent={
            "delete __syncthreads 3": "no tile is read behind the last products",
        },
    ),
)

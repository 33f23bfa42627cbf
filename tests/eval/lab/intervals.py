"""95 % intervals: of shares, after Wilson (1927) and, of a difference, Newcombe (1998, method 10); of other means, two
standard errors, no less."""

import math
import statistics

Z = 1.959963984540054


def wilson(share, n, z=Z):
    """(low, high) of a share seen in n samples. A share may be a mean of scores from 0 to 1: their variance is at most
    that of hits and misses with the same mean, so the interval is then rather too wide than too narrow."""
    if n == 0:
        return 0.0, 1.0
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(0.0, share * (1 - share)) / n + z * z / (4 * n * n))
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def of_mean(values, z=Z):
    """(low, high) of the mean of values of no known kind; (None, None) of a single one."""
    if len(values) < 2:
        return None, None
    half = z * statistics.stdev(values) / math.sqrt(len(values))
    middle = statistics.fmean(values)
    return middle - half, middle + half


def difference(a, n_a, b, n_b):
    """(low, high) of a - b, two independent shares."""
    low_a, high_a = wilson(a, n_a)
    low_b, high_b = wilson(b, n_b)
    return (a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b))


def agree(a, n_a, b, n_b):
    """Whether two shares may be the same one."""
    low, high = difference(a, n_a, b, n_b)
    return low <= 1e-12 and high >= -1e-12

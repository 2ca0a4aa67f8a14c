//! Moves labels apart until none touches another.

/// The tops of labels with these heights. Each is as near to its wanted place as the others allow, and all
/// are between `top` and `bottom`. If there is no room for all, they go on below `bottom`.
///
/// If labels had no height, this would be the isotonic regression of the wanted places, which merging
/// neighbours that are out of order computes (pool adjacent violators).
pub(super) fn spread(wanted: &[f64], heights: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut above = 0.0;
    let mut offsets = Vec::new();
    // Each pool: the mean of its places without the room above them, and how many labels it has.
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for &label in &order {
        offsets.push(above);
        pools.push((wanted[label] - above, 1));
        above += heights[label];
        while let [.., (a, m), (b, n)] = pools[..] {
            if a <= b {
                break;
            }
            pools.truncate(pools.len() - 2);
            pools.push(((a * m as f64 + b * n as f64) / (m + n) as f64, m + n));
        }
    }
    let lowest = (bottom - above).max(top);
    let places =
        pools.iter().flat_map(|&(place, count)| std::iter::repeat_n(place.clamp(top, lowest), count));
    let mut spread = vec![0.0; wanted.len()];
    for ((&label, offset), place) in order.iter().zip(offsets).zip(places) {
        spread[label] = place + offset;
    }
    spread
}

/// Assigns labels of a strip, given as left and right ends, to rows so that labels in a row do not touch.
pub(super) fn rows(ends: &[(f64, f64)]) -> Vec<usize> {
    let mut taken: Vec<Vec<(f64, f64)>> = Vec::new();
    let free = |row: &[(f64, f64)], (left, right): (f64, f64)| {
        row.iter().all(|other| right < other.0 || other.1 < left)
    };
    let mut rows = Vec::new();
    for &label in ends {
        let row = taken.iter().position(|row| free(row, label)).unwrap_or(taken.len());
        if row == taken.len() {
            taken.push(Vec::new());
        }
        taken[row].push(label);
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stay_where_they_want_to_be_unless_they_touch() {
        assert_eq!(spread(&[50.0, 10.0], &[10.0, 10.0], 0.0, 100.0), [50.0, 10.0]);
        assert_eq!(spread(&[50.0, 50.0], &[10.0, 10.0], 0.0, 100.0), [45.0, 55.0]);
        assert_eq!(spread(&[100.0, 100.0], &[10.0, 20.0], 0.0, 100.0), [70.0, 80.0]);
        assert_eq!(spread(&[-5.0], &[10.0], 0.0, 100.0), [0.0]);
    }

    #[test]
    fn no_labels_touch_wherever_they_want_to_be() {
        let random = fastrand::Rng::with_seed;
        for seed in 0..200 {
            let mut random = random(seed);
            let heights: Vec<f64> = (0..random.usize(1..9)).map(|_| 10.0 + 10.0 * random.f64()).collect();
            let wanted: Vec<f64> = heights.iter().map(|_| 250.0 * random.f64() - 25.0).collect();
            let mut placed: Vec<_> = spread(&wanted, &heights, 0.0, 200.0).into_iter().zip(heights).collect();
            placed.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in placed.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0 + 1e-9, "seed {seed}: {placed:?}");
            }
            let (last, height) = placed[placed.len() - 1];
            assert!(placed[0].0 >= 0.0 && last + height <= 200.0 + 1e-9, "seed {seed}: {placed:?}");
        }
    }

    #[test]
    fn labels_of_a_strip_take_another_row_if_they_touch() {
        assert_eq!(rows(&[(0.0, 10.0), (5.0, 15.0), (11.0, 20.0), (0.0, 30.0)]), [0, 1, 0, 2]);
    }
}

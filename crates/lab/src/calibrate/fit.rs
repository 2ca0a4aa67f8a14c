//! Explains what processors spent by what replicas did.

/// What a replica did and spent, a second.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The replica and its load, for people.
    pub(crate) what: String,
    /// Commands that it took from clients.
    pub(crate) requests: f64,
    /// Commands that it executed.
    pub(crate) executed: f64,
    /// Bursts in which it handled what had come.
    pub(crate) bursts: f64,
    /// Messages that it sent or received.
    pub(crate) messages: f64,
    /// Bytes of these messages, and of the commands that it took.
    pub(crate) bytes: f64,
    /// Seconds of a processor that it spent.
    pub(crate) busy: f64,
}

/// What each of these costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Price {
    pub(crate) request: f64,
    pub(crate) execute: f64,
    pub(crate) burst: f64,
    pub(crate) message: f64,
    pub(crate) byte: f64,
}

const UNKNOWNS: usize = 5;

impl Row {
    fn amounts(&self) -> [f64; UNKNOWNS] {
        [self.requests, self.executed, self.bursts, self.messages, self.bytes]
    }
}

impl Price {
    /// Seconds of a processor that a row should have spent.
    pub(crate) fn of(&self, row: &Row) -> f64 {
        let prices = [self.request, self.execute, self.burst, self.message, self.byte];
        row.amounts().iter().zip(prices).map(|(amount, price)| amount * price).sum::<f64>() / 1e9
    }
}

/// The prices, none of them negative, with the least squares of relative errors. `None` without rows.
pub(crate) fn fit(rows: &[Row]) -> Option<Price> {
    // A price that would be negative is 0. There are few prices, so all sets of those that are not 0 are tried.
    let sets = 1..1_usize << UNKNOWNS;
    let candidates = sets.filter_map(|set| {
        let used: Vec<usize> = (0..UNKNOWNS).filter(|unknown| set & 1 << unknown != 0).collect();
        let prices = least_squares(rows, &used)?;
        let error = |row: &Row| {
            let said: f64 = row.amounts().iter().zip(prices).map(|(amount, price)| amount * price).sum();
            (said / row.busy - 1.0).powi(2)
        };
        let all = prices.iter().all(|price| *price >= 0.0);
        all.then(|| (rows.iter().map(error).sum::<f64>(), prices))
    });
    let (_, prices) = candidates.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let [request, execute, burst, message, byte] = prices.map(|price| price * 1e9);
    Some(Price { request, execute, burst, message, byte })
}

/// Solves for the prices that are used; the others are 0. `None` if the rows do not determine them.
fn least_squares(rows: &[Row], used: &[usize]) -> Option<[f64; UNKNOWNS]> {
    let size = used.len();
    let mut system = vec![vec![0.0; size + 1]; size];
    for row in rows.iter().filter(|row| row.busy > 0.0) {
        let amounts = row.amounts().map(|amount| amount / row.busy);
        for (line, &i) in used.iter().enumerate() {
            for (column, &j) in used.iter().enumerate() {
                system[line][column] += amounts[i] * amounts[j];
            }
            system[line][size] += amounts[i];
        }
    }
    // Amounts differ by orders of magnitude, so each unknown is measured in a unit of its own.
    let units: Vec<f64> = (0..size).map(|line| system[line][line].sqrt()).collect();
    if units.iter().any(|unit| *unit <= 0.0) {
        return None;
    }
    for line in 0..size {
        for column in 0..size {
            system[line][column] /= units[line] * units[column];
        }
        system[line][size] /= units[line];
    }
    for line in 0..size {
        let pivot = (line..size).max_by(|&a, &b| system[a][line].abs().total_cmp(&system[b][line].abs()))?;
        system.swap(line, pivot);
        if system[line][line].abs() < 1e-9 {
            return None;
        }
        let own = system[line].clone();
        for (other, cells) in system.iter_mut().enumerate().filter(|(other, _)| *other != line) {
            debug_assert_ne!(other, line);
            let share = cells[line] / own[line];
            cells.iter_mut().zip(&own).for_each(|(cell, of)| *cell -= share * of);
        }
    }
    let mut prices = [0.0; UNKNOWNS];
    for (line, &unknown) in used.iter().enumerate() {
        prices[unknown] = system[line][size] / system[line][line] / units[line];
    }
    Some(prices)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price =
        Price { request: 20_000.0, execute: 3_000.0, burst: 40_000.0, message: 9_000.0, byte: 2.5 };

    fn rows() -> Vec<Row> {
        let amounts = [
            [9e3, 9e3, 2e3, 0.0, 2e5],
            [8e3, 8e3, 1e3, 2e3, 9e5],
            [0.0, 8e3, 1e3, 1e3, 4e5],
            [0.0, 5e3, 2e3, 3e3, 6e6],
            [5e3, 5e3, 3e3, 6e3, 12e6],
            [5e3, 5e3, 1e3, 9e3, 1e6],
        ];
        let row = |[requests, executed, bursts, messages, bytes]: [f64; UNKNOWNS]| {
            let row = Row { what: String::new(), requests, executed, bursts, messages, bytes, busy: 0.0 };
            Row { busy: PRICE.of(&row), ..row }
        };
        amounts.map(row).into()
    }

    #[test]
    fn prices_are_found_again() {
        let found = fit(&rows()).unwrap();
        for (found, price) in [
            (found.request, PRICE.request),
            (found.execute, PRICE.execute),
            (found.burst, PRICE.burst),
            (found.message, PRICE.message),
            (found.byte, PRICE.byte),
        ] {
            assert!((found / price - 1.0).abs() < 1e-6, "{found} {price}");
        }
    }

    #[test]
    fn no_price_is_negative() {
        let mut rows = rows();
        // A replica that exchanges more bytes spends less, which makes no sense.
        for row in &mut rows {
            row.busy -= row.bytes * 4e-9;
        }
        let found = fit(&rows).unwrap();
        assert!(found.byte >= 0.0 && found.request > 0.0, "{found:?}");
        assert_eq!(fit(&[]), None);
    }
}

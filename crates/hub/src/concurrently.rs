//! Futures that run at the same time, at most a few.

use std::future::Future;

use tokio::task::JoinSet;

/// Runs futures in tasks of their own, at most `max` at a time. Returns their results in the order of the futures.
/// Dropping this ends those that run.
///
/// # Panics
/// If one of them panics.
pub(crate) async fn concurrently<T, F>(max: usize, futures: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut waiting = futures.into_iter().enumerate();
    let (mut running, mut results) = (JoinSet::new(), Vec::new());
    loop {
        while running.len() < max.max(1)
            && let Some((index, future)) = waiting.next()
        {
            results.push(None);
            running.spawn(async move { (index, future.await) });
        }
        match running.join_next().await {
            None => return results.into_iter().flatten().collect(),
            Some(Ok((index, result))) => results[index] = Some(result),
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down, and this task with it.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn runs_a_few_at_a_time_and_keeps_the_order() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let futures = (0..10u64).map(|number| {
            let (running, most) = (running.clone(), most.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100 - number)).await;
                running.fetch_sub(1, Ordering::Relaxed);
                number
            }
        });
        assert_eq!(concurrently(4, futures).await, (0..10).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::Relaxed), 4);
    }
}

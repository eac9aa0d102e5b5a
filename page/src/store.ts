/** State outside of the components. Changes are rendered once per frame at most. */

import { useEffect, useReducer } from 'preact/hooks';

export class Store {
  private readonly listeners = new Set<() => void>();
  private isScheduled = false;

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  protected changed(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      for (const listener of this.listeners) listener();
    });
  }
}

export function useStore(store: Store): void {
  const [, render] = useReducer((version: number) => version + 1, 0);
  useEffect(() => {
    render(undefined as never);
    return store.subscribe(() => render(undefined as never));
  }, [store]);
}

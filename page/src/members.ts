/** The members of a room: their number, and the first of them. */

import type { ClientInfo } from 'centrifuge';

/** How many members are listed. */
const LISTED_MAX = 200;

export class Members {
  private readonly listed = new Map<string, ClientInfo>();
  total = 0;

  constructor(private readonly listedMax = LISTED_MAX) {}

  replace(infos: ClientInfo[]): void {
    this.listed.clear();
    this.total = infos.length;
    for (const info of infos.slice(0, this.listedMax)) this.listed.set(info.client, info);
  }

  joined(info: ClientInfo): void {
    if (!this.listed.has(info.client)) this.total++;
    if (this.listed.size < this.listedMax) this.listed.set(info.client, info);
  }

  left(info: ClientInfo): void {
    // One that is not listed is counted all the same.
    const hasOthers = this.total > this.listed.size;
    if (this.listed.delete(info.client) || hasOthers) this.total--;
  }

  list(): ClientInfo[] {
    return [...this.listed.values()];
  }
}

/** The pace of requests: in the long run a request takes a quarter of the time at most, but some may follow each other at once. What a person has set off
 * changes several times in a moment, and the last of it must not wait for the first. */

/** The time of a request, and three times as much for others. */
const SHARE = 4;
/** Time that may be owed, in milliseconds. */
const BURST_MS = 800;

export class Pace {
  private owed = 0;
  private at = 0;

  /** Notes a request by when it was made and answered; returns the pause before the next one, in milliseconds. */
  pauseAfter(asked: number, answered: number): number {
    this.owed = Math.max(0, this.owed - (answered - this.at)) + SHARE * (answered - asked);
    this.at = answered;
    return Math.max(0, this.owed - BURST_MS);
  }
}

/** A table of one kind of things. */
import type { ComponentChildren } from "preact";

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  hint?: (row: T) => string;
  isNumber?: boolean;
  /** Takes the room that is left. */
  isWide?: boolean;
  /** Stands below the wide one where the window is narrow. */
  isMinor?: boolean;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  tone?: (row: T) => string;
  empty: ComponentChildren;
}

export function Grid<T>({ label, columns: all, rows, id, tone, empty }: Props<T>) {
  if (rows.length === 0) return <p class="empty">{empty}</p>;
  // A column of which nothing is to be said of any row is not there.
  const columns = all.filter((column) => rows.some((row) => column.cell(row) !== ""));
  const name = (column: Column<T>) => [column.isNumber && "number", column.isWide && "wide", column.isMinor && "minor"].filter(Boolean).join(" ");
  return (
    <div class="scrolled" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.title} scope="col" class={name(column)}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={id(row)} class={tone?.(row)}>
              {columns.map((column) => (
                <td key={column.title} class={name(column)} title={column.hint?.(row) || undefined}>
                  {column.cell(row)}
                  {column.isWide && <Minors columns={columns} row={row} />}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What the minor columns have of a row, in a line. */
function Minors<T>({ columns, row }: { columns: Column<T>[]; row: T }) {
  const all = columns.filter((column) => column.isMinor).map((column) => [column.title, column.cell(row)] as const);
  return (
    <span class="minors">
      {all.map(([title, cell]) => cell !== "" && cell !== null && (
        <span key={title}>
          {title} {cell}
        </span>
      ))}
    </span>
  );
}

/** A table of one kind of things. */
import type { ComponentChildren } from "preact";

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  hint?: (row: T) => string;
  isNumber?: boolean;
  /** Takes the room that is left. */
  isWide?: boolean;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  tone?: (row: T) => string;
  empty: ComponentChildren;
}

export function Grid<T>({ label, columns, rows, id, tone, empty }: Props<T>) {
  if (rows.length === 0) return <p class="empty">{empty}</p>;
  const name = (column: Column<T>) => [column.isNumber && "number", column.isWide && "wide"].filter(Boolean).join(" ");
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
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

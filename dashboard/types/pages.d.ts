// Globals of the pages' scripts: three vendored libraries, and the elements of our own templates.
import type {} from "uplot"; // which declares the global `uPlot`

declare global {
  const htmx: {
    ajax(
      verb: string,
      path: string,
      context: {
        source: Element;
        fetch: (path: string, request: RequestInit) => Promise<Response>;
      },
    ): Promise<void>;
  };

  /** What the pages use of xterm.js. */
  class Terminal {
    constructor(options: { fontSize: number; scrollback: number; theme: { background: string } });
    readonly rows: number;
    readonly cols: number;
    loadAddon(addon: FitAddon.FitAddon): void;
    open(parent: HTMLElement): void;
    write(data: Uint8Array): void;
    reset(): void;
    focus(): void;
    blur(): void;
    onData(listener: (text: string) => void): void;
    attachCustomKeyEventHandler(handler: (event: KeyboardEvent) => boolean): void;
  }
  namespace FitAddon {
    class FitAddon {
      fit(): void;
    }
  }

  /** Manner of a read: the signal that aborts it, and headers of its request. */
  type Way = { signal?: AbortSignal; headers?: Record<string, string> };

  /** An element that a selector names. Which kind it is stands in the template, not in its type. */
  interface PageElement extends HTMLElement {
    indeterminate: boolean;
    checked: boolean;
    dateTime: string;
    disabled: boolean;
    files: FileList;
    form: HTMLFormElement;
    method: string;
    name: string;
    open: boolean;
    value: string;
  }

  interface ParentNode {
    querySelector<Name extends keyof HTMLElementTagNameMap>(
      selectors: Name,
    ): HTMLElementTagNameMap[Name] | null;
    querySelector<Found extends Element = PageElement>(selectors: string): Found | null;
    querySelectorAll<Name extends keyof HTMLElementTagNameMap>(
      selectors: Name,
    ): NodeListOf<HTMLElementTagNameMap[Name]>;
    querySelectorAll<Found extends Element = PageElement>(selectors: string): NodeListOf<Found>;
  }

  interface Element {
    closest<Found extends Element = PageElement>(selectors: string): Found | null;
  }

  type OnPage<Happened> = Happened & { readonly target: PageElement };
  interface Document {
    addEventListener<Name extends keyof DocumentEventMap>(
      type: Name,
      listener: (event: OnPage<DocumentEventMap[Name]>) => void,
    ): void;
  }
  interface HTMLElement {
    addEventListener<Name extends keyof HTMLElementEventMap>(
      type: Name,
      listener: (event: OnPage<HTMLElementEventMap[Name]>) => void,
    ): void;
  }
}

// The answer and the body of a request, by its method and address.
import type { Answers, Bodies } from "trainyard-api";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

// "/v1/jobs/{job_id}/metrics" -> `/v1/jobs/${string}/metrics`
type Filled<Path extends string> = Path extends `${infer Before}{${string}}${infer After}`
  ? `${Before}${string}${Filled<After>}`
  : Path;
type WithoutQuery<Address extends string> = Address extends `${infer Path}?${string}`
  ? Path
  : Address;

// An address that is known only as text has no known answer; one that no operation has, never one.
type Found<Operations, M extends Method, Address extends string> = string extends Address
  ? unknown
  : {
      [Name in keyof Operations]: Name extends `${M} ${infer Path}`
        ? [Filled<Path>, WithoutQuery<Address>] extends [WithoutQuery<Address>, Filled<Path>]
          ? Operations[Name]
          : never
        : never;
    }[keyof Operations];

export type Answer<M extends Method, Address extends string> = Found<Answers, M, Address>;
export type Body<M extends Method, Address extends string> = Found<Bodies, M, Address>;

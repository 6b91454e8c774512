package events

import "strings"

// The currencies of ISO 4217, grouped by the number of digits of the minor unit.
// The list is complete: it is List One of the standard's maintenance agency, SIX,
// as published on 2026-09-17
// (https://www.six-group.com/en/products-services/financial-information/market-reference-data/data-standards.html).
// It has 178 codes. The 13 without a minor unit are left out, because nobody can
// pay with them: XAG XAU XBA XBB XBC XBD XDR XPD XPT XSU XTS XUA XXX.
const (
	withoutMinorUnit = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
	withTwoDigits    = "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW " +
		"CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR " +
		"IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN " +
		"NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB " +
		"TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG"
	withThreeDigits = "BHD IQD JOD KWD LYD OMR TND"
	withFourDigits  = "CLF UYW"
)

// MinorDigits returns the number of digits of a currency's minor unit: 2 for
// EUR, 3 for KWD, and 0 for JPY, which has no smaller unit. ok is false for a
// code that is not in the list, "XXX" for one.
func MinorDigits(code string) (digits int, ok bool) {
	if len(code) != 3 || strings.Contains(code, " ") {
		return 0, false
	}
	switch {
	case strings.Contains(withTwoDigits, code):
		return 2, true
	case strings.Contains(withoutMinorUnit, code):
		return 0, true
	case strings.Contains(withThreeDigits, code):
		return 3, true
	case strings.Contains(withFourDigits, code):
		return 4, true
	default:
		return 0, false
	}
}

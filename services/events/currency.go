package events

import "strings"

// The currencies of ISO 4217 by the digits of their minor unit. Codes without
// one (XAU, XDR, XTS, XXX) are none to pay with, and not listed.
const (
	withoutMinorUnit = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
	withTwoDigits    = "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW " +
		"CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR " +
		"IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN " +
		"NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB " +
		"TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG"
	withThreeDigits = "BHD IQD JOD KWD LYD OMR TND"
	withFourDigits  = "CLF UYW"
)

// MinorDigits returns how many digits the minor unit of a currency has: 2 for
// EUR, 0 for JPY, which has none, 3 for KWD. ok is false when ISO 4217 does not
// know the code.
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
